//! A machine that runs the instructions of the sequences, decoded from this program, one at a time, and explores every way
//! in which threads on a few CPUs can be scheduled meanwhile.
//!
//! A state is memory, threads and CPUs. Its successors: any running thread takes a step; any CPU switches to another thread
//! (which preempts, migrates, and gives a new index); a signal's handler begins on any running thread. Switches and signals
//! are bounded, everything else is not; states that were seen are not explored again. The kernel's part is its rule: when a
//! thread is interrupted in the range of the descriptor that its `rseq_cs` names, it goes on at the abort address, and
//! `rseq_cs` is cleared in any case.
//!
//! Memory is sequentially consistent. That is enough: what an index owns is used by one CPU at a time, and a switch is a full
//! fence; the one place where CPUs meet, take-over, passes a membarrier, which is a full fence on all of them.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, MemorySize, Mnemonic, OpKind, Register,
};
use larder_percpu::sequence::frame::HEADER;
use larder_percpu::sequence::inlined::{self, Hold, NotStored};
use larder_percpu::sequence::table::SEQUENCES;
use larder_percpu::sequence::transaction::{Begun, INTERFERED, MISMATCH};
use larder_percpu::sequence::{Descriptor, Frame};

/// Where the simulated memory begins; below are no addresses, above is what the program itself refers to.
pub const MEMORY: u64 = 0x10_0000;
/// Words of simulated memory.
pub const WORDS: usize = 160;
/// The frame's address. Its two offsets are these values, at which the thread's own words are found.
pub const FRAME: u64 = MEMORY;
const RSEQ_CS: u64 = 0x1000;
const CPU_ID: u64 = RSEQ_CS - 4;
const INDEX: u64 = 0x2000;
/// The areas of the indices.
pub const AREAS: u64 = MEMORY + 0x100;
/// Bytes of an area.
pub const STRIDE: u64 = 0x100;
/// Memory that belongs to no index: nodes, pieces, the callers' words.
pub const HEAP: u64 = AREAS + 2 * STRIDE;

/// A sequence, as the machine runs it.
#[derive(Clone)]
pub struct Code {
    /// Instructions by address; `None` does nothing.
    pub lines: HashMap<u64, (Option<Instruction>, u64)>,
    /// Start, length and abort address, by the descriptor's address.
    pub ranges: HashMap<u64, (u64, u64, u64)>,
    /// The functions by name.
    pub entries: HashMap<&'static str, u64>,
    /// Whether registers have the places that the functions give them. In the copies the compiler chooses.
    fixed: bool,
    /// By the descriptor's address, registers that are written before they are read when the sequence starts over.
    scratch: HashMap<u64, Vec<usize>>,
}

impl Code {
    /// All sequences of the table.
    pub fn shipped() -> Self {
        let mut code = Self {
            lines: HashMap::new(),
            ranges: HashMap::new(),
            entries: HashMap::new(),
            fixed: true,
            scratch: HashMap::new(),
        };
        for entry in SEQUENCES {
            let start = (entry.function)() as u64;
            code.entries.insert(entry.name, start);
            code.read(start);
        }
        code
    }

    /// As [`Code::shipped`], with the copies for inlining in the place of the sequences that they are copies of.
    // SAFETY, of all blocks: the machine decodes these functions; nobody calls them.
    #[allow(clippy::undocumented_unsafe_blocks)]
    pub fn inlined() -> Self {
        unsafe extern "C" fn add(frame: &Frame, offset: usize, value: u64) -> u32 {
            u32::from(!unsafe { inlined::add(frame, offset, value) })
        }
        unsafe extern "C" fn list_pop(frame: &Frame, offset: usize) -> usize {
            unsafe { inlined::list_pop(frame, offset) }
        }
        unsafe extern "C" fn list_push(frame: &Frame, offset: usize, first: usize, last: usize) -> u32 {
            u32::from(!unsafe { inlined::list_push(frame, offset, first, last) })
        }
        unsafe extern "C" fn begin(frame: &Frame) -> Begun {
            let hold = unsafe { inlined::begin(frame) };
            Begun { token: hold.token, index: hold.index }
        }
        /// What a commit would have from its begin.
        #[inline(always)]
        fn hold(frame: &Frame, index: u64, token: u64) -> Hold {
            let offset = (index as usize).wrapping_mul(frame.stride.load(Relaxed));
            let area = frame.base.load(Relaxed).wrapping_add(offset);
            let (rseq_cs, index_word) = (frame.rseq_cs.load(Relaxed), frame.index.load(Relaxed));
            Hold { token, index, content: area.wrapping_add(HEADER), rseq_cs, index_word }
        }
        #[inline(always)]
        fn status(stored: Result<(), NotStored>) -> u32 {
            match stored {
                Ok(()) => 0,
                Err(NotStored::Interfered) => INTERFERED,
                Err(NotStored::Mismatch) => MISMATCH,
            }
        }
        unsafe extern "C" fn commit_store_32(f: &Frame, index: u64, token: u64, at: *mut u32, value: u32) -> u32 {
            u32::from(!unsafe { inlined::commit_store_32(hold(f, index, token), at, value) })
        }
        unsafe extern "C" fn commit_store_64(f: &Frame, index: u64, token: u64, at: *mut u64, value: u64) -> u32 {
            u32::from(!unsafe { inlined::commit_store_64(hold(f, index, token), at, value) })
        }
        unsafe extern "C" fn compare_32(f: &Frame, index: u64, token: u64, at: *mut u32, old: u32, new: u32) -> u32 {
            status(unsafe { inlined::commit_compare_32(hold(f, index, token), at, old, new) })
        }
        unsafe extern "C" fn compare_64(f: &Frame, index: u64, token: u64, at: *mut u64, old: u64, new: u64) -> u32 {
            status(unsafe { inlined::commit_compare_64(hold(f, index, token), at, old, new) })
        }
        let mut code = Self::shipped();
        let before = code.ranges.len();
        let copies = [
            ("add", add as *const () as u64),
            ("list_pop", list_pop as *const () as u64),
            ("list_push", list_push as *const () as u64),
            ("begin", begin as *const () as u64),
            ("commit_store_32", commit_store_32 as *const () as u64),
            ("commit_store_64", commit_store_64 as *const () as u64),
            ("commit_compare_32", compare_32 as *const () as u64),
            ("commit_compare_64", compare_64 as *const () as u64),
        ];
        code.fixed = false;
        for (name, start) in copies {
            assert_ne!(code.entries.insert(name, start), Some(start));
            code.read(start);
        }
        assert_eq!(code.ranges.len(), before + copies.len(), "each copy has a descriptor of its own");
        code
    }

    /// Decodes from `ip` on, along all branches.
    fn read(&mut self, ip: u64) {
        let mut ip = ip;
        while !self.lines.contains_key(&ip) {
            let i = decode(ip);
            self.lines.insert(ip, (Some(i), i.next_ip()));
            if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
                let at = i.ip_rel_memory_address();
                // SAFETY: a sequence names its descriptor, a constant of the program.
                let d = unsafe { &*std::ptr::with_exposed_provenance::<Descriptor>(at as usize) };
                self.ranges.insert(at, (d.start as u64, d.length as u64, d.abort as u64));
                let (rax, r10) = (0, 10);
                let scratch = if self.fixed { vec![rax, r10] } else { vec![register(i.op0_register())] };
                self.scratch.insert(at, scratch);
                self.read(d.abort as u64);
            }
            match i.flow_control() {
                FlowControl::Return => return,
                FlowControl::ConditionalBranch => self.read(i.near_branch_target()),
                FlowControl::UnconditionalBranch => {
                    ip = i.near_branch_target();
                    continue;
                }
                _ => {}
            }
            ip = i.next_ip();
        }
    }

    /// Which register has the frame's address in a range, or outside of all.
    fn frame_register(&self, range: Option<u64>) -> Option<Register> {
        let Some(at) = range.filter(|_| !self.fixed) else { return Some(Register::RDI) };
        let (start, length, _) = self.ranges[&at];
        let mut ip = start;
        while ip < start + length {
            let i = decode(ip);
            // The bound of the index; nothing else lies that far behind its base in the scripts' memory.
            if i.mnemonic() == Mnemonic::Cmp && i.memory_displacement64() == 32 && i.memory_segment() != Register::FS {
                return Some(i.memory_base());
            }
            ip = i.next_ip();
        }
        None
    }

    /// The descriptor's address of a sequence.
    pub fn range_of(&self, name: &str) -> u64 {
        let start = self.entries[name];
        let behind = self.ranges.iter().filter(|(_, range)| range.0 > start);
        *behind.min_by_key(|(_, range)| range.0).expect("a sequence has a descriptor").0
    }

    /// The addresses of a sequence's range, in order, and of the first instruction behind it.
    pub fn addresses(&self, name: &str) -> Vec<u64> {
        let (start, length, _) = self.ranges[&self.range_of(name)];
        let mut all = vec![start];
        while *all.last().unwrap() < start + length {
            all.push(self.lines[all.last().unwrap()].1);
        }
        all
    }
}

fn decode(ip: u64) -> Instruction {
    const LONGEST: usize = 15;
    // SAFETY: the program's text; behind a sequence's last instruction are others.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(ip as usize), LONGEST) };
    let i = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    assert!(!i.is_invalid(), "{ip:#x} does not decode");
    i
}

/// What a script wants next.
pub enum Step {
    /// Call a sequence with these arguments.
    Call(&'static str, [u64; 6]),
    /// Read a word into a local.
    Load(u64, usize),
    /// Store a word.
    Store(u64, u64),
    /// Abort the sequences of all running threads.
    Membarrier,
    /// Go to another place of the script; costs no step.
    Go(u8),
    /// It is over.
    Done,
}

/// A thread's program: from its place, its locals, and what the last call returned.
pub type Script = fn(u8, &mut [u64; 6], (u64, u64), &mut Accounts) -> Step;

/// What was put in and came out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accounts {
    pub put: Vec<u64>,
    pub got: Vec<u64>,
    pub added: u64,
    pub found: u64,
}

impl Accounts {
    /// Notes an item that was put somewhere. Kept in order, so that states can be compared.
    pub fn put(&mut self, item: u64) {
        self.put.push(item);
        self.put.sort_unstable();
    }

    /// Notes an item that came out; 0 is none.
    pub fn got(&mut self, item: u64) {
        if item != 0 {
            self.got.push(item);
            self.got.sort_unstable();
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Context {
    regs: [u64; 16],
    zero: bool,
    carry: bool,
    /// 0 while the thread is in its script.
    rip: u64,
    script: usize,
    place: u8,
    locals: [u64; 6],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Thread {
    now: Context,
    /// What a signal interrupted.
    outer: Option<Box<Context>>,
    rseq_cs: u64,
    index: u64,
    done: bool,
    signals: u8,
}

#[derive(Clone)]
struct State {
    memory: Vec<u64>,
    threads: Vec<Thread>,
    /// The thread on each CPU.
    cpus: Vec<Option<usize>>,
    switches: u8,
    accounts: Accounts,
    /// How it was reached, where that is wanted.
    history: Vec<String>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.memory, &self.threads, &self.cpus, self.switches, &self.accounts).hash(hasher);
    }
}

/// What is explored.
pub struct Setting<'s> {
    /// The programs, one for each thread.
    pub threads: &'s [Script],
    /// What a signal's handler does, and on how many threads one may arrive.
    pub handler: Option<Script>,
    /// How many CPUs.
    pub cpus: usize,
    /// How many switches that no thread asked for.
    pub switches: u8,
    /// Whether the index is a concurrency id: any that no running thread has. Otherwise the CPU.
    pub by_id: bool,
    /// Words that are not zero in the beginning.
    pub memory: &'s [(u64, u64)],
    /// What must hold in the end.
    pub check: fn(&[u64], &Accounts) -> Result<(), String>,
}

/// How much was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    pub states: usize,
    pub ends: usize,
    pub aborts: usize,
}

/// Explores everything; the first end that breaks the rules is an error, which tells how it was reached.
pub fn explore(code: &Code, setting: &Setting<'_>) -> Result<Explored, String> {
    explore_with(code, setting, false).map_err(|_| {
        // Once more, to tell how: keeping every state's history would cost more than it is worth.
        explore_with(code, setting, true).expect_err("the same states are explored")
    })
}

fn explore_with(code: &Code, setting: &Setting<'_>, traced: bool) -> Result<Explored, String> {
    let mut memory = vec![0; WORDS];
    let mut put = |at: u64, value: u64| memory[((at - MEMORY) / 8) as usize] = value;
    put(FRAME, RSEQ_CS);
    put(FRAME + 8, INDEX);
    put(FRAME + 16, AREAS);
    put(FRAME + 24, STRIDE);
    put(FRAME + 32, 2);
    put(FRAME + 40, HEAP + 0x180);
    setting.memory.iter().for_each(|&(at, value)| put(at, value));
    let thread = |script: usize| Thread {
        now: Context { regs: [0; 16], zero: false, carry: false, rip: 0, script, place: 0, locals: [0; 6] },
        outer: None,
        rseq_cs: 0,
        index: 0,
        done: false,
        signals: u8::from(setting.handler.is_some()),
    };
    let first = State {
        memory,
        threads: (0..setting.threads.len()).map(thread).collect(),
        cpus: vec![None; setting.cpus],
        switches: setting.switches,
        accounts: Accounts::default(),
        history: vec![],
    };
    let mut explorer = Explorer { code, setting, seen: HashSet::new(), explored: Explored::default(), traced };
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        if !explorer.seen.insert(fingerprint(&state)) {
            continue;
        }
        explorer.explored.states += 1;
        if state.threads.iter().all(|t| t.done) {
            explorer.explored.ends += 1;
            (setting.check)(&state.memory, &state.accounts)
                .map_err(|e| format!("{e}\n{}", state.history.join("\n")))?;
            continue;
        }
        explorer.successors(&state, &mut open).map_err(|e| format!("{e}\n{}", state.history.join("\n")))?;
    }
    Ok(explorer.explored)
}

/// 128 bits, so that two states are not taken for one.
fn fingerprint(state: &State) -> (u64, u64) {
    let mut lanes = Lanes(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03);
    state.hash(&mut lanes);
    (lanes.0, lanes.1)
}

/// A hash of two independent lanes; states are hashed by the million.
struct Lanes(u64, u64);

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(29) ^ n).wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.1 = (self.1.rotate_left(37) ^ n).wrapping_mul(0xda94_2042_e4dd_58b5);
        self.0 ^= self.0 >> 32;
        self.1 ^= self.1 >> 29;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

struct Explorer<'s> {
    code: &'s Code,
    setting: &'s Setting<'s>,
    seen: HashSet<(u64, u64)>,
    explored: Explored,
    traced: bool,
}

impl Explorer<'_> {
    fn note(&self, state: &mut State, what: impl FnOnce() -> String) {
        if self.traced {
            state.history.push(what());
        }
    }

    fn successors(&mut self, state: &State, into: &mut Vec<State>) -> Result<(), String> {
        for cpu in 0..state.cpus.len() {
            match state.cpus[cpu] {
                Some(t) if !state.threads[t].done => {
                    let mut next = state.clone();
                    self.note(&mut next, || {
                        let now = &state.threads[t].now;
                        format!("cpu {cpu} thread {t} {:#x} script {}.{}", now.rip, now.script, now.place)
                    });
                    self.step(&mut next, t)?;
                    into.push(next);
                    if state.threads[t].signals > 0 && state.threads[t].outer.is_none() {
                        let mut next = state.clone();
                        self.note(&mut next, || format!("cpu {cpu} thread {t} gets a signal"));
                        self.signal(&mut next, t);
                        into.push(next);
                    }
                    if state.switches > 0 {
                        for other in self.ready(state) {
                            let mut next = state.clone();
                            next.switches -= 1;
                            self.interrupt(&mut next.threads[t]);
                            next.cpus[cpu] = None;
                            self.schedule(&next, other, cpu, into);
                        }
                        // It may also only leave, to come back or go elsewhere.
                        let mut next = state.clone();
                        next.switches -= 1;
                        self.interrupt(&mut next.threads[t]);
                        next.cpus[cpu] = None;
                        into.push(next);
                    }
                }
                // Idle, or its thread has ended.
                _ => {
                    for other in self.ready(state) {
                        let mut next = state.clone();
                        next.cpus[cpu] = None;
                        self.schedule(&next, other, cpu, into);
                    }
                }
            }
        }
        Ok(())
    }

    /// Threads that run nowhere and have something to do.
    fn ready(&self, state: &State) -> Vec<usize> {
        (0..state.threads.len()).filter(|&t| !state.threads[t].done && !state.cpus.contains(&Some(t))).collect()
    }

    /// Puts a thread on a CPU, with every index that it may get.
    fn schedule(&self, state: &State, t: usize, cpu: usize, into: &mut Vec<State>) {
        let taken =
            |id: u64| state.cpus.iter().flatten().any(|&r| !state.threads[r].done && state.threads[r].index == id);
        let ids: Vec<u64> =
            if self.setting.by_id { (0..2).filter(|&id| !taken(id)).collect() } else { vec![cpu as u64] };
        for id in ids {
            let mut next = state.clone();
            next.threads[t].index = id;
            next.cpus[cpu] = Some(t);
            self.note(&mut next, || format!("cpu {cpu} runs thread {t} with index {id}"));
            into.push(next);
        }
    }

    /// The kernel's rule for a thread that is preempted, gets a signal, or is reached by a membarrier.
    fn interrupt(&mut self, thread: &mut Thread) {
        if let Some(&(start, length, abort)) = self.code.ranges.get(&thread.rseq_cs)
            && (start..start + length).contains(&thread.now.rip)
        {
            thread.now.rip = abort;
            // What the abort handler finds in these means nothing.
            self.code.scratch[&thread.rseq_cs].iter().for_each(|&r| thread.now.regs[r] = 0);
            self.explored.aborts += 1;
        }
        thread.rseq_cs = 0;
    }

    fn signal(&mut self, state: &mut State, t: usize) {
        let handler = self.setting.threads.len();
        let thread = &mut state.threads[t];
        self.interrupt(thread);
        thread.signals -= 1;
        let fresh =
            Context { regs: [0; 16], zero: false, carry: false, rip: 0, script: handler, place: 0, locals: [0; 6] };
        thread.outer = Some(Box::new(std::mem::replace(&mut thread.now, fresh)));
    }

    /// One step of a thread: an instruction, or what its script does between calls.
    fn step(&mut self, state: &mut State, t: usize) -> Result<(), String> {
        if state.threads[t].now.rip != 0 {
            return self.instruction(state, t);
        }
        loop {
            let thread = &mut state.threads[t];
            let script = if thread.now.script < self.setting.threads.len() {
                self.setting.threads[thread.now.script]
            } else {
                self.setting.handler.expect("a handler runs only where there is one")
            };
            let returned = (thread.now.regs[0], thread.now.regs[2]);
            let step = script(thread.now.place, &mut thread.now.locals, returned, &mut state.accounts);
            thread.now.place += 1;
            // What is left in registers means nothing.
            thread.now.regs = [0; 16];
            match step {
                Step::Go(place) => {
                    thread.now.place = place;
                    continue;
                }
                Step::Call(name, arguments) => {
                    // rdi, rsi, rdx, rcx, r8, r9
                    for (register, argument) in [7, 6, 2, 1, 8, 9].into_iter().zip(arguments) {
                        thread.now.regs[register] = argument;
                    }
                    thread.now.rip = self.code.entries[name];
                }
                Step::Load(at, local) => thread.now.locals[local] = *word(&mut state.memory, at)?,
                Step::Store(at, value) => *word(&mut state.memory, at)? = value,
                Step::Membarrier => {
                    // The caller's own CPU runs the caller; other threads of that CPU are interrupted already.
                    for other in state.cpus.clone().into_iter().flatten().filter(|&other| other != t) {
                        self.interrupt(&mut state.threads[other]);
                    }
                }
                Step::Done => match state.threads[t].outer.take() {
                    Some(outer) => state.threads[t].now = *outer,
                    None => state.threads[t].done = true,
                },
            }
            return Ok(());
        }
    }

    fn instruction(&mut self, state: &mut State, t: usize) -> Result<(), String> {
        loop {
            let ip = state.threads[t].now.rip;
            let (line, next) = self.code.lines.get(&ip).ok_or_else(|| format!("{ip:#x} is no instruction"))?;
            state.threads[t].now.rip = *next;
            if let Some(i) = line {
                execute(i, &mut state.threads[t], &mut state.memory)?;
            }
            if !self.is_alone(state.threads[t].now.rip) {
                return Ok(());
            }
        }
    }

    /// Whether the instruction touches only registers and what never changes, and leads neither into a range nor
    /// out of one. Nobody can tell whether a thread stands before or behind it: an interruption has the same effect, and
    /// other threads see nothing of it. So it is taken together with the instruction before.
    fn is_alone(&self, ip: u64) -> bool {
        let Some((line, next)) = self.code.lines.get(&ip) else { return false };
        let range = |ip: u64| self.code.ranges.iter().find(|(_, r)| (r.0..r.0 + r.1).contains(&ip)).map(|(at, _)| *at);
        if range(ip) != range(*next) {
            return false;
        }
        let Some(i) = line else { return true };
        if i.flow_control() != FlowControl::Next && range(i.near_branch_target()) != range(ip) {
            return false;
        }
        let has_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        // The frame, and whether the thread is registered.
        let reads_frame = match i.memory_segment() {
            Register::FS => i.memory_displacement64() == (-4i64) as u64,
            _ => Some(i.memory_base()) == self.code.frame_register(range(ip)),
        };
        i.mnemonic() != Mnemonic::Ret && (!has_memory || i.mnemonic() == Mnemonic::Lea || reads_frame)
    }
}

fn word(memory: &mut [u64], at: u64) -> Result<&mut u64, String> {
    let place = at.checked_sub(MEMORY).map(|o| o / 8).filter(|&o| at.is_multiple_of(8) && o < WORDS as u64);
    place.map(|o| &mut memory[o as usize]).ok_or_else(|| format!("an access to {at:#x}, which nobody has"))
}

fn register(r: Register) -> usize {
    r.full_register() as usize - Register::RAX as usize
}

fn address(i: &Instruction, thread: &Thread) -> u64 {
    let value = |r: Register| if r == Register::None { 0 } else { thread.now.regs[register(r)] };
    value(i.memory_base())
        .wrapping_add(value(i.memory_index()).wrapping_mul(i.memory_index_scale().into()))
        .wrapping_add(i.memory_displacement64())
}

fn load(i: &Instruction, thread: &Thread, memory: &mut [u64]) -> Result<u64, String> {
    let at = address(i, thread);
    if i.memory_segment() == Register::FS {
        return match at {
            INDEX => Ok(thread.index),
            RSEQ_CS => Ok(thread.rseq_cs),
            // `cpu_id`, by which a sequence knows that the thread is registered.
            CPU_ID => Ok(0),
            _ => Err(format!("a read of the thread's memory at {at:#x}")),
        };
    }
    let whole = *word(memory, at & !7)?;
    Ok(if i.memory_size().size() == 4 { whole >> (at % 8 * 8) & 0xffff_ffff } else { whole })
}

fn store(i: &Instruction, thread: &mut Thread, memory: &mut [u64], value: u64) -> Result<(), String> {
    let at = address(i, thread);
    if i.memory_segment() == Register::FS {
        if at != RSEQ_CS {
            return Err(format!("a store to the thread's memory at {at:#x}"));
        }
        thread.rseq_cs = value;
        return Ok(());
    }
    let whole = word(memory, at & !7)?;
    if i.memory_size().size() == 4 {
        let shift = at % 8 * 8;
        *whole = *whole & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift;
    } else {
        *whole = value;
    }
    Ok(())
}

/// The value of an operand.
fn operand(i: &Instruction, n: u32, thread: &Thread, memory: &mut [u64]) -> Result<u64, String> {
    match i.op_kind(n) {
        OpKind::Register => {
            let r = i.op_register(n);
            let value = thread.now.regs[register(r)];
            Ok(if r.size() == 4 { value & 0xffff_ffff } else { value })
        }
        OpKind::Memory => load(i, thread, memory),
        _ => Ok(i.immediate(n)),
    }
}

fn set(i: &Instruction, thread: &mut Thread, memory: &mut [u64], value: u64) -> Result<(), String> {
    if i.op_kind(0) == OpKind::Memory {
        return store(i, thread, memory, value);
    }
    let r = i.op_register(0);
    let place = &mut thread.now.regs[register(r)];
    *place = match r.size() {
        1 => *place & !0xff | value & 0xff,
        4 => value & 0xffff_ffff,
        _ => value,
    };
    Ok(())
}

fn compare(thread: &mut Thread, a: u64, b: u64) {
    thread.now.zero = a == b;
    thread.now.carry = a < b;
}

fn holds(i: &Instruction, thread: &Thread) -> bool {
    let (zero, carry) = (thread.now.zero, thread.now.carry);
    match i.condition_code() {
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::a => !zero && !carry,
        ConditionCode::ae => !carry,
        other => panic!("condition {other:?} is not used by sequences"),
    }
}

fn execute(i: &Instruction, thread: &mut Thread, memory: &mut [u64]) -> Result<(), String> {
    let binary = |thread: &Thread, memory: &mut [u64]| -> Result<(u64, u64), String> {
        Ok((operand(i, 0, thread, memory)?, operand(i, 1, thread, memory)?))
    };
    match i.mnemonic() {
        Mnemonic::Mov => {
            let value = operand(i, 1, thread, memory)?;
            set(i, thread, memory, value)?;
        }
        Mnemonic::Lea => {
            let value = if i.is_ip_rel_memory_operand() { i.ip_rel_memory_address() } else { address(i, thread) };
            set(i, thread, memory, value)?;
        }
        Mnemonic::Cmp => {
            let (a, b) = binary(thread, memory)?;
            compare(thread, a, b);
        }
        Mnemonic::Test => {
            let (a, b) = binary(thread, memory)?;
            compare(thread, a & b, 0);
        }
        Mnemonic::Add => {
            let (a, b) = binary(thread, memory)?;
            set(i, thread, memory, a.wrapping_add(b))?;
        }
        Mnemonic::Sub => {
            let (a, b) = binary(thread, memory)?;
            compare(thread, a, b);
            set(i, thread, memory, a.wrapping_sub(b))?;
        }
        Mnemonic::Imul => {
            let (a, b) = binary(thread, memory)?;
            set(i, thread, memory, a.wrapping_mul(b))?;
        }
        Mnemonic::Xor => {
            let (a, b) = binary(thread, memory)?;
            set(i, thread, memory, a ^ b)?;
        }
        // The counter of restarts, which is outside of the simulated memory.
        Mnemonic::Inc if i.has_lock_prefix() => {}
        Mnemonic::Inc => {
            let value = operand(i, 0, thread, memory)?;
            set(i, thread, memory, value.wrapping_add(1))?;
        }
        Mnemonic::Dec => {
            let value = operand(i, 0, thread, memory)?;
            set(i, thread, memory, value.wrapping_sub(1))?;
        }
        Mnemonic::Cmova => {
            let value = operand(i, 1, thread, memory)?;
            if holds(i, thread) {
                set(i, thread, memory, value)?;
            }
        }
        Mnemonic::Setne => set(i, thread, memory, u64::from(holds(i, thread)))?,
        Mnemonic::Cmpxchg => {
            let (seen, new) = binary(thread, memory)?;
            compare(thread, thread.now.regs[0], seen);
            if thread.now.zero {
                set(i, thread, memory, new)?;
            } else {
                thread.now.regs[0] = seen;
            }
        }
        Mnemonic::Cmpxchg16b => {
            assert_eq!(i.memory_size(), MemorySize::UInt128);
            let at = address(i, thread);
            if !at.is_multiple_of(16) {
                return Err(format!("a pair at {at:#x}"));
            }
            let seen = [*word(memory, at)?, *word(memory, at + 8)?];
            thread.now.zero = seen == [thread.now.regs[0], thread.now.regs[2]];
            if thread.now.zero {
                *word(memory, at)? = thread.now.regs[3];
                *word(memory, at + 8)? = thread.now.regs[1];
            } else {
                (thread.now.regs[0], thread.now.regs[2]) = (seen[0], seen[1]);
            }
        }
        // A copy's function saves a register for its caller; here, nobody has anything in it.
        Mnemonic::Push | Mnemonic::Pop => {}
        Mnemonic::Ret => thread.now.rip = 0,
        _ => match i.flow_control() {
            FlowControl::ConditionalBranch => {
                if holds(i, thread) {
                    thread.now.rip = i.near_branch_target();
                }
            }
            FlowControl::UnconditionalBranch => thread.now.rip = i.near_branch_target(),
            _ => return Err(format!("the machine does not know {:?}", i.mnemonic())),
        },
    }
    Ok(())
}
