## What a Nim program asks of its collector, spread over threads. Usage: work THREADS
##
## The compiler's runtime opens libgc while it starts (dlopen), allocates everything there, clears what it calls atomic itself, and registers threads that it makes by
## pthread_create. The amount of work is the same for every number of threads, and so is what is printed: one line for each part.

import std/[algorithm, math, os, sequtils, strutils, tables, sets, lists, json, deques]

const
  Tasks = 64
  Prime = 1_000_003

type
  Node = ref object
    number: int
    left, right: Node
    name: string
  Shape = ref object of RootObj
    side: float
  Circle = ref object of Shape
  Square = ref object of Shape
    corners: seq[(float, float)]
  Trouble = object of CatchableError
    depth: int
    culprit: Node

method area(s: Shape): float {.base, gcsafe.} = 0.0
method area(s: Circle): float = 3.0 * s.side * s.side
method area(s: Square): float = s.side * s.side + s.corners.foldl(a + b[0] - b[1], 0.0)

proc grow(depth, number: int): Node =
  result = Node(number: number, name: "node " & $number)
  if depth > 0:
    result.left = grow(depth - 1, number * 2 mod 9973)
    result.right = grow(depth - 1, number * 3 mod 9973)

proc sum(n: Node): int =
  if n.isNil: return 0
  (n.number + n.name.len + sum(n.left) + 3 * sum(n.right)) mod Prime

proc trees(task: int): int =
  for i in 0 ..< 6:
    let kept = grow(9, task * 31 + i)
    for j in 0 ..< 3: discard grow(7, j)
    result = (result * 7 + sum(kept)) mod Prime

proc words(task: int): int =
  var counts = initTable[string, int]()
  var text = ""
  for i in 0 ..< 4000:
    text.add $((i * 7919 + task * 104729) mod 613)
    text.add(if i mod 9 == 8: '\n' else: ' ')
  for line in text.splitLines:
    for word in line.splitWhitespace:
      counts.mgetOrPut("w" & word, 0).inc
  var keys = toSeq(counts.keys)
  keys.sort do (a, b: string) -> int:
    result = cmp(counts[b], counts[a])
    if result == 0: result = cmp(a, b)
  for i, key in keys:
    result = (result * 3 + counts[key] * (i + 1) + key.len) mod Prime

proc closures(task: int): int =
  var steps: seq[proc (x: int): int {.gcsafe.}]
  for i in 0 ..< 500:
    closureScope:
      let (factor, name) = (i + task, repeat('x', i mod 17))
      steps.add proc (x: int): int = (x * factor + name.len + 1) mod Prime
  result = 1
  for round in 0 ..< 8:
    for step in steps: result = step(result)
    steps.reverse

proc fall(depth: int): int =
  let node = grow(2, depth)
  if depth == 0:
    raise (ref Trouble)(msg: "at the end", depth: depth, culprit: node)
  try:
    result = fall(depth - 1) + node.number
  except Trouble as e:
    if depth mod 5 == 0: return (e.depth + sum(e.culprit) + e.msg.len) mod Prime
    raise (ref Trouble)(msg: e.msg & "!", depth: e.depth + depth, culprit: node)

proc troubles(task: int): int =
  for i in 0 ..< 60:
    try:
      result = (result * 11 + fall(task mod 7 + i mod 40 + 1)) mod Prime
    except Trouble as e:
      result = (result + e.depth + sum(e.culprit) + e.msg.len) mod Prime

proc shapes(task: int): int =
  var all: seq[Shape]
  var total = 0.0
  for i in 0 ..< 3000:
    if (i + task) mod 3 == 0: all.add Circle(side: float(i mod 10))
    else: all.add Square(side: float(i mod 7), corners: newSeqWith(i mod 5, (float(i mod 11), 1.0)))
    if all.len > 400: all.delete(i * 37 mod all.len)
  for shape in all: total += shape.area
  int(total) mod Prime

proc collections(task: int): int =
  var
    queue = initDeque[seq[int]]()
    list = initDoublyLinkedList[string]()
    seen = initHashSet[int]()
  for i in 0 ..< 3000:
    queue.addLast toSeq(i ..< i + i mod 13)
    if queue.len > 100: result = (result + queue.popFirst.sum + seen.card) mod Prime
    if i mod 4 == 0: list.append "element " & $i
    if i mod 12 == 8: list.remove list.head
    seen.incl (i * i + task) mod 1009
  for text in list: result = (result * 5 + text.len + ord(text[^1])) mod Prime

proc documents(task: int): int =
  var all = newJArray()
  for i in 0 ..< 150:
    all.add %*{"number": i * task, "name": "item " & $i, "parts": [i, i + 1, {"deep": [$i, nil, true]}]}
  let again = parseJson($all)
  for item in again:
    result = (result * 13 + item["number"].getInt + item["parts"][2]["deep"][0].getStr.len) mod Prime
  result = (result + ($again).len) mod Prime

type
  Work = proc (task: int): int {.nimcall, gcsafe.}
  Part = tuple[name: string, work: Work]

let parts: array[7, Part] = [
  ("trees", Work(trees)), ("words", Work(words)), ("closures", Work(closures)), ("troubles", Work(troubles)),
  ("shapes", Work(shapes)), ("collections", Work(collections)), ("documents", Work(documents))]

var
  results: array[parts.len, array[Tasks, int]]
  threads = 1
  # Not in a sequence: that is an object without references for Nim, which keeps in each thread's record the only address of a block that it frees when
  # the thread ends.
  running: array[Tasks, Thread[int]]

proc run(first: int) {.thread.} =
  for task in countup(first, Tasks - 1, threads):
    for i in 0 ..< parts.len: {.gcsafe.}: results[i][task] = parts[i].work(task)

proc checkLibrary() =
  ## No loader lists what a program opens by itself.
  let wanted = getEnv("LD_LIBRARY_PATH")
  if wanted.len > 0 and wanted.split(':').allIt((it / "libgc.so.1") notin readFile("/proc/self/maps")):
    quit "libgc.so.1 is not that of LD_LIBRARY_PATH", 3

when isMainModule:
  checkLibrary()
  if paramCount() > 0: threads = parseInt(paramStr(1))
  for i in 0 ..< threads: createThread(running[i], run, i)
  for i in 0 ..< threads: joinThread(running[i])
  for i, part in parts:
    echo part.name, " ", results[i].sum
