-- The health of a StreamsApp in Argo CD. Healthy: every task runs what the manifest says.
-- Degraded waits for a person: the operator goes on trying, but what is wrong does not mend itself.
local health = {}

local function answer(status, message)
  health.status = status
  health.message = message
  return health
end

if obj.status == nil then
  return answer("Progressing", "Waiting for the operator to see the resource")
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(type, status)
  return conditions[type] ~= nil and conditions[type].status == status
end

local function because(type)
  return conditions[type].reason .. ": " .. conditions[type].message
end

if is("ReconciliationPaused", "True") then
  return answer("Suspended", because("ReconciliationPaused"))
end

-- What is told of an older manifest says nothing about this one.
if (obj.status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return answer("Progressing", "Waiting for the operator to see generation " .. obj.metadata.generation)
end

if is("Stalled", "True") then
  return answer("Degraded", because("Stalled"))
end
for _, type in ipairs({ "TopologyCompatible", "TopicsReady", "BrokersReachable", "StorageHealthy" }) do
  -- Without Stalled the operator still works on it; it is a failure once the application is not to be started with it.
  if is(type, "False") and (obj.status.lifecycleState == "Failed" or obj.status.lifecycleState == "Blocked") then
    return answer("Degraded", because(type))
  end
end
-- The old revision runs, but the manifest in git is not what runs.
if is("RolledBack", "True") then
  return answer("Degraded", because("RolledBack"))
end

if obj.status.lifecycleState == "Suspended" then
  return answer("Suspended", "The application is suspended (spec.state)")
end
if is("Ready", "True") then
  return answer("Healthy", conditions["Ready"].message)
end
if obj.status.lifecycleState == "Failed" or obj.status.lifecycleState == "Blocked" then
  return answer("Degraded", conditions["Ready"] and because("Ready") or obj.status.lifecycleState)
end
if is("BrokersReachable", "False") then
  return answer("Degraded", because("BrokersReachable"))
end
return answer("Progressing", conditions["Ready"] and because("Ready") or "Waiting for the application to start")
