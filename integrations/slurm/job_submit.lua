-- Server side, optional, in the folder of slurm.conf: slurmctld asks for the time limit of batch scripts that nobody
-- gave one. It blocks slurmctld while it asks, so `command` should be one that asks a warm process.
-- A site that has a job_submit.lua already adds the lines with `kernelcast` to it.

-- pcall: slurmctld does not start with a job_submit.lua that fails to load.
local loaded, kernelcast = pcall(dofile, "/etc/slurm/kernelcast.lua")
if loaded then
  kernelcast.command = "kernelcast walltime"
  -- Where `kernelcast serve` runs, milliseconds instead (docs/serve.md): kernelcast.command = "kernelcast-ask"
  kernelcast.timeout_s = 2
end

function slurm_job_submit(job, partitions, user_id)
  if loaded then
    kernelcast.fill_job(job)
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user_id)
  return slurm.SUCCESS
end
