-- Shared by cli_filter.lua and job_submit.lua: asks kernelcast for a job's time limit; errors never stop the job.
-- Runs on Lua 5.1 (Slurm's in Debian) to 5.4. docs/deploy.md describes the installation.
--
-- It runs `timeout SECONDS COMMAND --format slurm [--asked TIME] [--slurm NAME=VALUE …] [--untrusted] -- JOB`.
-- COMMAND writes one line to its standard output, `HH:MM:SS` or `D-HH:MM:SS`; its standard error is shown to the job's
-- user. After any other output, a timeout or a missing command, the job is unchanged.

local kernelcast = {
  command = "kernelcast walltime", -- run by sh; give the full path when it is not in everybody's PATH
  timeout_s = 10,                  -- a job is held up for no longer than this, and a second more
}

local MARK = "#KERNELCAST"
local JOB_FILE = "kernelcast.toml"
local HEAD_BYTES = 1048576 -- of a script; what a user says stands before its first command
local MAX_DAYS = 24855     -- with more, Slurm 22.05 keeps another time than the one it was given
local SHOWN_LINES = 5
local SHOWN_BYTES = 400

-- Options (cli_filter) that determine the nodes and GPUs of a job.
local OPTIONS = { "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres" }

-- Any text as one word for sh. Texts of Slurm have no NUL, which sh could not take.
local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- A line for a terminal or a log: short, without control characters.
local function shown(line)
  return (line:sub(1, SHOWN_BYTES):gsub("%c", "?"):gsub("\194[\128-\159]", "?"))
end

local function read_file(path, bytes)
  local file = io.open(path, "rb")
  if not file then
    return nil
  end
  local text = file:read(bytes)
  file:close()
  return text or ""
end

local function is_file(path)
  -- Checked by sh, because opening a named pipe would wait for its writer.
  local status = os.execute("test -f " .. quoted(path))
  return status == true or status == 0 -- Lua 5.2 and later, Lua 5.1
end

-- Whether a script asks for a prediction; a line `#KERNELCAST off` refuses.
local function wants(script)
  local found = false
  for line in ("\n" .. script):gmatch("\n(" .. MARK .. "[^\n]*)") do
    local rest = line:sub(#MARK + 1)
    if rest:match("^%s+off%s*$") then
      return false, true
    end
    found = found or rest == "" or rest:match("^%s") ~= nil
  end
  return found, false
end

-- Ask for a time limit. Returns it (or nil), and the lines for the user.
local function ask(words, input)
  local out, err = os.tmpname(), os.tmpname()
  local command = { "timeout -k 1", tostring(kernelcast.timeout_s), kernelcast.command, "--format slurm" }
  for _, word in ipairs(words) do
    command[#command + 1] = quoted(word)
  end
  -- Files, not pipes: a child process that keeps a pipe open could delay its reader beyond `timeout`.
  os.execute(table.concat(command, " ")
    .. " <" .. quoted(input or "/dev/null") .. " >" .. quoted(out) .. " 2>" .. quoted(err))
  local answer, said = read_file(out, 100) or "", read_file(err, 65536) or ""
  os.remove(out)
  os.remove(err)
  local lines = {}
  for line in said:gmatch("[^\n]+") do
    if #lines < SHOWN_LINES then
      lines[#lines + 1] = shown((line:gsub("^kernelcast: ", "")))
    end
  end
  local limit = answer:match("^(%d+%-%d%d:%d%d:%d%d)\n$") or answer:match("^(%d%d:%d%d:%d%d)\n$")
  if limit and tonumber(limit:match("^(%d+)%-") or 0) > MAX_DAYS then
    limit = nil
  end
  if not limit and #lines == 0 then
    lines[1] = "no answer"
  end
  return limit, lines
end

local function tell(log, lines)
  for _, line in ipairs(lines) do
    log("%s", "kernelcast: " .. line)
  end
end

-- In cli_filter, a missing time is nil, empty, or (Slurm 22.05) an impossible number of days.
local function is_missing(time)
  return time == nil or time == "" or time == "INVALID" or time:match("^2982616%-") ~= nil
end

local function first_line(path)
  return (read_file(path, 100) or ""):match("^[^\n]*")
end

-- The script or folder that describes the job of a command line, or nil without a description.
local function described_by(options)
  local program = first_line("/proc/self/comm")
  local argv = options["argv"]
  local script = argv and argv[1]
  if program == "sbatch" and not script then
    -- A script on standard input or a wrapped command: only the folder can describe it.
    local folder = options["chdir"] or "."
    return is_file(folder .. "/" .. JOB_FILE) and folder or nil
  end
  -- A step inside a job has the job's time, and salloc is interactive.
  local starts_a_job = program == "sbatch" or (program == "srun" and not os.getenv("SLURM_JOB_ID"))
  if not starts_a_job or not script or not is_file(script) then
    return nil
  end
  local marked, off = wants(read_file(script, HEAD_BYTES) or "")
  if off then
    return nil
  end
  -- A folder's description is for its batch scripts, not for commands of srun.
  local beside = (script:match("^(.*/)") or "./") .. JOB_FILE
  return (marked or (program == "sbatch" and is_file(beside))) and script or nil
end

local function predict_option(options)
  if os.getenv("KERNELCAST") == "off" then
    return
  end
  local time = options["time"]
  if time == "UNLIMITED" then
    return
  end
  local job = described_by(options)
  if not job then
    return
  end
  local words = {}
  for _, name in ipairs(OPTIONS) do
    local value = options[name]
    if value and value ~= "" and value ~= "invalid-context" then
      words[#words + 1] = "--slurm"
      words[#words + 1] = name .. "=" .. value
    end
  end
  local explicit = not is_missing(time)
  if explicit then
    words[#words + 1] = "--asked"
    words[#words + 1] = time
  end
  words[#words + 1] = "--"
  words[#words + 1] = job
  local limit, lines = ask(words)
  tell(slurm.log_info, lines)
  if explicit then
    return
  end
  if limit then
    options["time"] = limit
    tell(slurm.log_info, { "time limit " .. limit .. ", as predicted for " .. shown(job) })
  else
    tell(slurm.log_info, { "submitted without a predicted time limit" })
  end
end

local function minutes(limit)
  local days, hours, mins, seconds = limit:match("^(%d+)%-(%d+):(%d+):(%d+)$")
  if not days then
    days, hours, mins, seconds = 0, limit:match("^(%d+):(%d+):(%d+)$")
  end
  return days * 1440 + hours * 60 + mins + (tonumber(seconds) > 0 and 1 or 0)
end

-- A job's requests as options of the command line; job_submit has numbers for missing requests, too.
local function requests(job)
  local words = {}
  local function say(name, value)
    if value ~= nil and value ~= "" then
      words[#words + 1] = "--slurm"
      words[#words + 1] = name .. "=" .. value
    end
  end
  local function number(value)
    -- NO_VAL, NO_VAL16 and INFINITE are beyond any cluster.
    return type(value) == "number" and value > 0 and value < 65000 and string.format("%d", value) or nil
  end
  local least, most = number(job.min_nodes), number(job.max_nodes)
  say("nodes", least and most and least ~= most and least .. "-" .. most or least)
  say("ntasks", number(job.num_tasks))
  say("ntasks-per-node", number(job.ntasks_per_node))
  say("gres", job.tres_per_node)
  say("gpus", job.tres_per_job)
  say("gpus-per-task", job.tres_per_task)
  return words
end

local function predict_job(job)
  local script = job.script
  if type(script) ~= "string" or job.time_limit ~= slurm.NO_VAL or not wants(script) then
    return
  end
  local environment = job.environment
  if environment and environment["KERNELCAST"] == "off" then
    return
  end
  local input = os.tmpname()
  local file = assert(io.open(input, "wb"))
  file:write(script:sub(1, HEAD_BYTES))
  file:close()
  local words = requests(job)
  words[#words + 1] = "--untrusted"
  words[#words + 1] = "--"
  words[#words + 1] = "-"
  local limit, lines = ask(words, input)
  os.remove(input)
  tell(slurm.log_user, lines)
  if limit then
    job.time_limit = minutes(limit)
    tell(slurm.log_user, { "time limit " .. limit .. ", as predicted" })
  else
    tell(slurm.log_user, { "submitted without a predicted time limit" })
  end
end

-- An error here must not stop a job.
local function safely(work, subject)
  local done, problem = pcall(work, subject)
  if not done then
    slurm.log_info("%s", "kernelcast: " .. shown(tostring(problem)))
  end
end

-- For slurm_cli_pre_submit: sets a missing options["time"] if the job's script or folder describes the job.
function kernelcast.fill_option(options)
  safely(predict_option, options)
end

-- For slurm_job_submit: sets a missing job.time_limit if the job's script describes the job.
function kernelcast.fill_job(job)
  safely(predict_job, job)
end

return kernelcast
