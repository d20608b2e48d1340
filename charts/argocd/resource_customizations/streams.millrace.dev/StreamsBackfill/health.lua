-- The health of a StreamsBackfill in Argo CD: it is healthy once it is done.
local health = {}
local phase = obj.status and obj.status.phase or "Pending"
health.message = obj.status and obj.status.message or "Waiting for the operator to see the resource"
if phase == "Succeeded" then
  health.status = "Healthy"
elseif phase == "Failed" or phase == "Refused" then
  health.status = "Degraded"
else
  health.status = "Progressing"
end
return health
