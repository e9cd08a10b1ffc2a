-- Server side, optional, in the folder of slurm.conf: slurmctld asks for the time limit of batch scripts without one.
-- slurmctld is blocked meanwhile, so that `command` should ask a running server.
-- Sites with a job_submit.lua add the lines with `kernelcast` to it.

-- pcall: slurmctld does not start with a job_submit.lua that fails to load.
local loaded, kernelcast = pcall(dofile, "/etc/slurm/kernelcast.lua")
if loaded then
  kernelcast.command = "kernelcast walltime"
  -- With a running `kernelcast serve`, in milliseconds (docs/serve.md): kernelcast.command = "kernelcast-ask"
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
