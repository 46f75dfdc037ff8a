-- Prepares the globals that scripts see: readonly, without what reaches outside of a script, and with bounds on
-- the functions whose work a short call could make endless. Functions of the engine are in `host`. Returns the
-- environment of scripts, the function that runs one, the table of the functions that reach the engine, and the
-- function that begins and ends the loading of a library.
local host, globals = ...

local READONLY = "Attempt to modify a readonly table"
-- The elements that a function of `table` may touch before they are counted.
local FREE_ELEMENTS = 64
-- The elements that the library's own sort may compare by itself, unless one is a long string.
local NATIVELY_SORTED = 1000

local type, tostring, tonumber, error, select = type, tostring, tonumber, error, select
local next, rawset, setmetatable, getmetatable = next, rawset, setmetatable, getmetatable
local pairs, ipairs, pcall, xpcall = pairs, ipairs, pcall, xpcall
local visible, spend = host.visible, host.spend
local concat, sort, floor, resume = table.concat, table.sort, math.floor, coroutine.resume

-- The table behind each readonly one, and the mark of those whose metatable is not shown.
local behind, SEALED = host.behind, host.sealed

local function refuse()
  error(READONLY, 2)
end

local function seal(original, shown)
  local proxy = {}
  behind[proxy] = original
  return setmetatable(proxy, {__index = original, __newindex = refuse, __metatable = shown or SEALED})
end

-- Raises the error for an argument in the name of the function that was called by a script.
local function bad(index, name, expected, count, value)
  local given = index > count and "no value" or type(value)
  error("bad argument #" .. index .. " to '" .. name .. "' (" .. expected .. " expected, got " .. given .. ")", 3)
end

local function settle(ok, ...)
  if ok then return true, ... end
  return false, visible((...))
end

local function settle_in_words(ok, ...)
  if ok then return true, ... end
  local value = visible((...))
  if type(value) == "table" then
    local words = value.err
    if type(words) == "string" or type(words) == "number" then return false, words end
  end
  return false, value
end

function globals.pcall(...)
  if select("#", ...) == 0 then return false, "attempt to call a boolean value" end
  return settle_in_words(pcall(...))
end

function globals.xpcall(called, handler, ...)
  if handler == nil then
    error("bad argument #2 to 'xpcall' (value expected)", 2)
  end
  return settle(xpcall(called, function(value) return handler(visible(value)) end))
end

function coroutine.resume(...)
  if type((...)) ~= "thread" then
    error("bad argument #1 to 'resume' (coroutine expected)", 2)
  end
  return settle(resume(...))
end

function globals.next(...)
  local where, key = ...
  if type(where) ~= "table" then bad(1, "next", "table", select("#", ...), where) end
  return next(behind[where] or where, key)
end

-- Gathers a source before it is compiled, so that nothing of a script runs within the compiler.
function globals.load(...)
  local reader, name = ...
  if type(reader) ~= "function" then bad(1, "load", "function", select("#", ...), reader) end
  local pieces = {}
  while true do
    local ok, piece = pcall(reader)
    if not ok then return nil, visible(piece) end
    if piece == nil or piece == "" then break end
    if type(piece) ~= "string" and type(piece) ~= "number" then
      return nil, "reader function must return a string"
    end
    pieces[#pieces + 1] = piece
  end
  return host.loadstring(concat(pieces), name or "=(load)")
end

for _, name in ipairs({
  "collectgarbage", "gcinfo", "getmetatable", "loadstring", "pairs", "rawget", "rawset", "setmetatable",
  "unpack",
}) do
  globals[name] = host[name]
end
for _, name in ipairs({"concat", "insert", "remove"}) do
  table[name] = host[name]
end

local function less(one, other)
  return one < other
end

-- A comparison in Lua is counted.
local function counted(order)
  return function(one, other)
    return order(one, other)
  end
end

function table.sort(...)
  local where, order = ...
  local count = select("#", ...)
  if type(where) ~= "table" then bad(1, "sort", "table", count, where) end
  if order ~= nil and type(order) ~= "function" then bad(2, "sort", "function", count, order) end
  local length = #where
  if length > FREE_ELEMENTS then spend(length * 8) end
  if order then
    if host.is_native(order) then order = counted(order) end
  -- Elements in a bad order make the sort quadratic, and long strings take long to compare.
  elseif length > NATIVELY_SORTED or not host.is_short(behind[where] or where, length) then
    order = less
  end
  return sort(where, order)
end

-- The library's own functions visit the elements beyond `#where` uncounted.
function table.foreach(...)
  local where, called = ...
  local count = select("#", ...)
  if type(where) ~= "table" then bad(1, "foreach", "table", count, where) end
  if type(called) ~= "function" then bad(2, "foreach", "function", count, called) end
  for key, value in next, behind[where] or where do
    local result = called(key, value)
    if result ~= nil then return result end
  end
end

function table.maxn(...)
  local where = ...
  if type(where) ~= "table" then bad(1, "maxn", "table", select("#", ...), where) end
  local most = 0
  for key in next, behind[where] or where do
    if type(key) == "number" and key > most then most = key end
  end
  return most
end

for _, name in ipairs({"foreachi", "getn", "setn"}) do
  local original = table[name]
  table[name] = function(...)
    local where = ...
    if type(where) ~= "table" then bad(1, name, "table", select("#", ...), where) end
    if name == "setn" then error("'setn' is obsolete", 2) end
    if #where > FREE_ELEMENTS then spend(#where) end
    return original(behind[where] or where, select(2, ...))
  end
end

string.find, string.match = host.find, host.match
string.gmatch, string.gfind = host.gmatch, host.gmatch
string.rep, string.lower, string.upper, string.reverse = host.rep, host.lower, host.upper, host.reverse
string.char, string.format = host.char, host.format
local search, gsub = host.search, host.gsub

function string.gsub(...)
  local subject, pattern, replacement, most = ...
  local kind = type(replacement)
  if kind ~= "function" and kind ~= "table" or type(subject) ~= "string" and type(subject) ~= "number"
    or type(pattern) ~= "string" and type(pattern) ~= "number" then
    return gsub(...)
  end
  subject, pattern = tostring(subject), tostring(pattern)
  most = most == nil and #subject + 1 or tonumber(most)
  if most == nil then bad(4, "gsub", "number", 4, (select(4, ...))) end
  -- A fraction is cut off, as Lua's own function does.
  most = most < 0 and 0 or floor(most)
  local only_here = pattern:byte(1) == 94
  if only_here then pattern = pattern:sub(2) end
  local pieces, at, count = {}, 0, 0
  local function replace(finish, start, ...)
    if finish == nil then return nil end
    local value
    if kind == "table" then
      value = replacement[(...)]
    else
      value = replacement(...)
    end
    if not value then
      value = subject:sub(start + 1, finish)
    elseif type(value) ~= "string" and type(value) ~= "number" then
      error("invalid replacement value (a " .. type(value) .. ")", 3)
    end
    return finish, start, value
  end
  while count < most do
    local finish, start, value = replace(search(subject, pattern, at, only_here))
    if finish == nil then break end
    count = count + 1
    pieces[#pieces + 1] = subject:sub(at + 1, start)
    pieces[#pieces + 1] = value
    at = finish
    if finish == start then
      if at >= #subject then break end
      pieces[#pieces + 1] = subject:sub(at + 1, at + 1)
      at = at + 1
    end
    if only_here then break end
  end
  pieces[#pieces + 1] = subject:sub(at + 1)
  return concat(pieces), count
end

math.random, math.randomseed = host.random, host.randomseed
math.max, math.min = host.max, host.min

for _, name in ipairs({"dofile", "loadfile", "print", "newproxy", "getfenv", "setfenv", "module", "require"}) do
  globals[name] = nil
end

for name, functions in pairs(host.libraries) do
  globals[name] = functions
end
for _, name in ipairs({"debug", "io", "os", "package"}) do
  globals[name] = nil
end

if not host.loading then
  function globals.__redis__err__handler(value)
    return host.finish(value)
  end
end

-- The functions of `redis` that reach the engine are those of the call that is under way. A function of a library
-- may keep `redis.call` for its next call, so it gets one of the engine that lasts.
local reached = host.reached or globals.redis

-- Scripts see readonly tables only; what a script puts into one in a way of its own goes when it ends.
local sealed = {}
for name, value in pairs(globals) do
  if type(value) == "table" and value ~= globals then
    sealed[name] = value
  end
end
for name, value in pairs(sealed) do
  globals[name] = seal(value)
end
local strings = getmetatable("")
strings.__index = string
strings.__metatable = seal({__index = globals.string})

local function missing(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end
setmetatable(globals, {__index = missing})
local around = {__index = globals, __newindex = refuse, __metatable = seal({__index = missing})}
local environment = setmetatable({}, around)
behind[environment] = globals
rawset(globals, "_G", environment)

-- While a library is loaded, it sees nothing but what registers its functions.
local loading
if host.loading then
  local redis = seal(setmetatable(host.loading, {__index = missing}))
  loading = setmetatable({redis = redis}, {__index = missing})
end

local function switch(is_loading)
  around.__index = is_loading and loading or globals
end

local function tidy()
  for proxy in next, behind do
    local key = next(proxy)
    while key ~= nil do
      rawset(proxy, key, nil)
      key = next(proxy)
    end
  end
end

local finish = host.finish

return environment, function(script, keys, arguments)
  local run = script
  if keys then run = function() return script(keys, arguments) end end
  local ok, value = xpcall(run, finish)
  tidy()
  return ok, value
end, reached, switch
