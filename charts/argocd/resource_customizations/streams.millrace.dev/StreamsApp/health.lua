-- The health of a StreamsApp in Argo CD.
--   Healthy      every replica runs all its tasks, as the manifest says
--   Progressing  the operator is working, or waiting for something that may still come
--   Degraded     someone has to act; what is running keeps running
--   Suspended    the manifest says so, or the operator is paused
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

-- A status about an older manifest says nothing about this one.
if (obj.status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return answer("Progressing", "Waiting for the operator to see generation " .. obj.metadata.generation)
end

-- Stalled often only points at the condition that has the details.
if is("Stalled", "True") then
  for _, type in ipairs({ "TopologyCompatible", "TopicsReady", "RolledBack" }) do
    if is(type, type == "RolledBack" and "True" or "False") then
      return answer("Degraded", because(type))
    end
  end
  return answer("Degraded", because("Stalled"))
end
-- The old revision is running, but what is in git is not.
if is("RolledBack", "True") then
  return answer("Degraded", because("RolledBack"))
end

local scaled_to_zero = conditions["Ready"] ~= nil and conditions["Ready"].reason == "ScaledToZero"
if obj.status.lifecycleState == "Suspended" and not scaled_to_zero then
  return answer("Suspended", "The application is suspended (spec.state)")
end
if is("Ready", "True") and not is("Reconciling", "True") then
  return answer("Healthy", conditions["Ready"].message)
end

-- Brokers that have never answered may be part of the same rollout; otherwise they have gone down.
if is("BrokersReachable", "False") then
  local never_ran = obj.status.stableRevision == nil and conditions["BrokersReachable"].reason == "Unreachable"
  return answer(never_ran and "Progressing" or "Degraded", because("BrokersReachable"))
end
if is("TopicsReady", "False") then
  return answer("Progressing", because("TopicsReady"))
end
for _, type in ipairs({ "Reconciling", "StateRestored", "Ready" }) do
  if is(type, type == "Reconciling" and "True" or "False") then
    return answer("Progressing", because(type))
  end
end
return answer("Progressing", "Waiting for the application to start")
