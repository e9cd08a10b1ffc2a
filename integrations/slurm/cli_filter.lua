-- Client side, in the folder of slurm.conf: sbatch and srun ask kernelcast for a missing time limit.
-- Sites with a cli_filter.lua add the lines with `kernelcast` to it.

-- pcall: a cli_filter.lua that fails to load would stop every submission.
local loaded, kernelcast = pcall(dofile, "/etc/slurm/kernelcast.lua")
if loaded then
  kernelcast.command = "kernelcast walltime"
  kernelcast.timeout_s = 10
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  if loaded then
    kernelcast.fill_option(options)
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
