//! A machine that runs the instructions of the sequences, decoded from this program, one at a time, and explores every way
//! in which threads on a few CPUs can be scheduled meanwhile.
//!
//! A state is memory, threads and CPUs. Its successors: any running thread takes a step; any CPU switches to another thread
//! (which preempts, migrates, and gives a new index); a signal's handler begins on any running thread. Switches and signals
//! are bounded, everything else is not; states that were seen are not explored again. The kernel's part is its rule: when a
//! thread is interrupted in the range of the descriptor that its `rseq_cs` names, it goes on at the abort address, and
//! `rseq_cs` is cleared in any case.
//!
//! What nobody can tell apart is explored once: instructions of which nobody sees whether they come before or after another's
//! (`Explorer::is_alone`), and states in which threads with the same script, or CPUs that give no index, have changed places
//! (`fingerprint`).
//!
//! Memory is sequentially consistent. That is enough: what an index owns is used by one CPU at a time, and a switch is a full
//! fence; the one place where CPUs meet, take-over, passes a membarrier, which is a full fence on all of them.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash};

use iced_x86::{ConditionCode, FlowControl, Mnemonic};
use larder_percpu::sequence::SLAB;

use crate::code::Code;
use crate::compiled::{Access, Compiled, Line, Operand, RSP};
pub use crate::copies::STRIDE;
use crate::fingerprint::{AsIs, Lanes, mixed};
use crate::script::{Accounts, Script, Step};

/// Where the simulated memory begins; below are no addresses, above is what the program itself refers to.
pub const MEMORY: u64 = 0x10_0000;
/// Words of simulated memory, without the fixed heap's slots.
pub const WORDS: usize = 160;
/// The fixed heap's slot: two words in the slab of each index.
pub const SLOT: u64 = 0x80_0000;
const INDICES: usize = 2;
const ALL_WORDS: usize = WORDS + 2 * INDICES;
/// The frame's address. Its two offsets are these values, at which the thread's own words are found.
pub const FRAME: u64 = MEMORY;
pub const RSEQ_CS: u64 = 0x1000;
pub const CPU_ID: u64 = RSEQ_CS - 4;
pub const INDEX: u64 = 0x2000;
/// Where each thread's stack begins and ends; nobody else sees it.
const STACK: u64 = 0x4000;
const STACK_WORDS: usize = 24;
const STACK_END: u64 = STACK + 8 * STACK_WORDS as u64;
/// The areas of the indices.
pub const AREAS: u64 = MEMORY + 0x100;
/// Memory that belongs to no index: nodes, pieces, the callers' words.
pub const HEAP: u64 = AREAS + 2 * STRIDE;
/// What the fixed heap's sequences know about the machine, in the place of a frame.
pub const GROUND: u64 = HEAP + 0x1c0;

#[derive(Clone, Hash)]
struct Context {
    regs: [u64; 16],
    zero: bool,
    carry: bool,
    /// The line; 0 while the thread is in its script.
    rip: usize,
    /// The script's number; of equal scripts, the first one's.
    script: usize,
    place: u8,
    locals: [u64; 6],
    stack: [u64; STACK_WORDS],
}

impl Context {
    fn new(script: usize) -> Self {
        let (regs, locals, stack) = ([0; 16], [0; 6], [0; STACK_WORDS]);
        Self { regs, zero: false, carry: false, rip: 0, script, place: 0, locals, stack }
    }
}

#[derive(Clone)]
struct Thread {
    now: Context,
    /// What a signal interrupted.
    outer: Option<Box<Context>>,
    rseq_cs: u64,
    /// 0 while it does not run.
    index: u64,
    done: bool,
    signals: u8,
}

/// The simulated memory, with a hash that is kept as words change.
#[derive(Clone)]
struct Memory {
    words: [u64; ALL_WORDS],
    hash: (u64, u64),
}

impl Memory {
    fn set(&mut self, place: usize, value: u64) {
        let old = std::mem::replace(&mut self.words[place], value);
        for value in [old, value] {
            let (one, two) = mixed(place as u64, value);
            self.hash.0 ^= one;
            self.hash.1 ^= two;
        }
    }
}

#[derive(Clone)]
struct State {
    memory: Memory,
    threads: Vec<Thread>,
    /// The thread on each CPU.
    cpus: Vec<Option<usize>>,
    switches: u8,
    accounts: Accounts,
    /// How it was reached, where that is wanted.
    history: Vec<String>,
}

/// The memory at an end: an address to its word.
pub type Words<'w> = &'w dyn Fn(u64) -> u64;

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
    /// What must hold in the end, of memory and accounts.
    pub check: fn(Words<'_>, &Accounts) -> Result<(), String>,
}

/// How much was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    pub states: usize,
    pub ends: usize,
    pub aborts: usize,
}

/// How to explore.
#[derive(Clone, Copy, Default)]
struct Manner {
    /// Keeps the history of each state.
    traced: bool,
    /// Takes nothing together, and no state for another one.
    one_by_one: bool,
}

/// Memory and accounts at an end.
type End = (Vec<u64>, Accounts);

/// Explores everything; the first end that breaks the rules is an error, which tells how it was reached.
pub fn explore(code: &Code, setting: &Setting<'_>) -> Result<Explored, String> {
    explore_with(code, setting, Manner::default(), |_| {}).map_err(|_| {
        // Once more, to tell how: keeping every state's history would cost more than it is worth.
        let traced = Manner { traced: true, ..Manner::default() };
        explore_with(code, setting, traced, |_| {}).expect_err("the same states are explored")
    })
}

/// As `explore`, for those who want to know only whether there is a fault.
pub fn fault(code: &Code, setting: &Setting<'_>) -> Option<String> {
    explore_with(code, setting, Manner::default(), |_| {}).err()
}

/// All ends, the rules apart; `one_by_one` takes nothing together.
pub fn ends(code: &Code, setting: &Setting<'_>, one_by_one: bool) -> (Explored, HashSet<End>) {
    let mut all = HashSet::new();
    let setting = Setting { check: |_, _| Ok(()), ..*setting };
    let manner = Manner { one_by_one, ..Manner::default() };
    let explored = explore_with(code, &setting, manner, |state| {
        all.insert((state.memory.words.to_vec(), state.accounts));
    });
    (explored.expect("an end is no error"), all)
}

fn explore_with(
    code: &Code,
    setting: &Setting<'_>,
    manner: Manner,
    mut ended: impl FnMut(&State),
) -> Result<Explored, String> {
    let (code, explored) = (&Compiled::new(code), Explored::default());
    let (seen, uses) = (HashSet::default(), [Use::default(); ALL_WORDS]);
    let mut explorer = Explorer { code, setting, seen, explored, manner, uses, surprised: false };
    loop {
        let explored = explorer.everything(&mut ended)?;
        if !std::mem::take(&mut explorer.surprised) {
            return Ok(explored);
        }
        // A word that was taken for one thread's, or for constant, is not: once more, knowing it.
        explorer.seen.clear();
        explorer.explored = Explored::default();
    }
}

/// 128 bits, so that two states are not taken for one. States are the same where threads with the same script have changed
/// places, or CPUs whose number is not the index.
fn fingerprint(state: &State, by_id: bool, one_by_one: bool) -> (u64, u64) {
    let mut threads = [(0, 0); 4];
    for (t, thread) in state.threads.iter().enumerate() {
        let mut lanes = Lanes::default();
        if thread.done {
            thread.now.script.hash(&mut lanes);
        } else {
            let cpu = state.cpus.iter().position(|&on| on == Some(t));
            (&thread.now, &thread.outer).hash(&mut lanes);
            (thread.rseq_cs, thread.index, thread.signals).hash(&mut lanes);
            if by_id && !one_by_one { cpu.is_some().hash(&mut lanes) } else { cpu.hash(&mut lanes) }
        }
        // The number of the script is part of the hash.
        threads[t] = lanes.both();
    }
    if !one_by_one {
        threads.sort_unstable();
    }
    let mut lanes = Lanes::default();
    (threads, state.switches, &state.accounts, state.memory.hash).hash(&mut lanes);
    lanes.both()
}

/// Who has used a word so far: a thread, and whether in its handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Who {
    #[default]
    Nobody,
    One(usize),
    Many,
}

impl Who {
    fn and(self, who: usize) -> Self {
        match self {
            Self::Nobody => Self::One(who),
            Self::One(other) if other == who => self,
            _ => Self::Many,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    read: Who,
    written: Who,
}

impl Use {
    /// Whether only one uses it, who therefore sees no difference.
    fn is_of(&self, who: usize) -> bool {
        [Who::Nobody, Who::One(who)].contains(&self.read) && [Who::Nobody, Who::One(who)].contains(&self.written)
    }
}

struct Explorer<'s> {
    code: &'s Compiled,
    setting: &'s Setting<'s>,
    seen: HashSet<(u64, u64), BuildHasherDefault<AsIs>>,
    explored: Explored,
    manner: Manner,
    /// Learned on the way. Words that nobody writes, and those that one thread has for itself, make instructions alone.
    uses: [Use; ALL_WORDS],
    /// Whether a word turned out to be used by more than was believed.
    surprised: bool,
}

impl Explorer<'_> {
    fn note(&self, state: &mut State, what: impl FnOnce() -> String) {
        if self.manner.traced {
            state.history.push(what());
        }
    }

    fn first(&self) -> State {
        let setting = self.setting;
        let mut memory = Memory { words: [0; ALL_WORDS], hash: (0, 0) };
        let mut put = |at: u64, value: u64| memory.set(place(at, 8).expect("a word of memory"), value);
        put(FRAME, RSEQ_CS);
        put(FRAME + 8, INDEX);
        put(FRAME + 16, AREAS);
        put(FRAME + 24, STRIDE);
        put(FRAME + 32, INDICES as u64);
        put(FRAME + 40, HEAP + 0x180);
        put(GROUND, RSEQ_CS);
        put(GROUND + 8, INDEX);
        put(GROUND + 16, INDICES as u64);
        setting.memory.iter().for_each(|&(at, value)| put(at, value));
        let thread = |t: usize| Thread {
            now: Context::new(self.script(t)),
            outer: None,
            rseq_cs: 0,
            index: 0,
            done: false,
            signals: u8::from(setting.handler.is_some()),
        };
        State {
            memory,
            threads: (0..setting.threads.len()).map(thread).collect(),
            cpus: vec![None; setting.cpus],
            switches: setting.switches,
            accounts: Accounts::default(),
            history: vec![],
        }
    }

    /// The number of a thread's script: the first thread that has it.
    fn script(&self, t: usize) -> usize {
        let all = self.setting.threads;
        all.iter().position(|&script| std::ptr::fn_addr_eq(script, all[t])).expect("its own at least")
    }

    fn fingerprint(&self, state: &State) -> (u64, u64) {
        fingerprint(state, self.setting.by_id, self.manner.one_by_one)
    }

    fn everything(&mut self, ended: &mut impl FnMut(&State)) -> Result<Explored, String> {
        /// After so many states that had one successor each, one is looked up: there may be a loop.
        const FORCED: usize = 32;
        let mut open = vec![self.first()];
        let mut next = vec![];
        while let Some(mut state) = open.pop() {
            let mut forced = 0;
            loop {
                let looked_up = forced % FORCED == 0;
                if looked_up && !self.seen.insert(self.fingerprint(&state)) {
                    break;
                }
                self.explored.states += 1;
                let told = |e| format!("{e}\n{}", state.history.join("\n"));
                if state.threads.iter().all(|t| t.done) {
                    self.explored.ends += 1;
                    ended(&state);
                    let words = |at: u64| state.memory.words[place(at, 8).expect("a word of memory")];
                    (self.setting.check)(&words, &state.accounts).map_err(told)?;
                    break;
                }
                self.successors(&state, &mut next).map_err(told)?;
                if self.surprised {
                    return Ok(self.explored);
                }
                if next.len() != 1 {
                    open.append(&mut next);
                    break;
                }
                state = next.remove(0);
                forced += 1;
            }
        }
        Ok(self.explored)
    }

    fn successors(&mut self, state: &State, into: &mut Vec<State>) -> Result<(), String> {
        for cpu in 0..state.cpus.len() {
            match state.cpus[cpu] {
                Some(t) if !state.threads[t].done => {
                    let mut next = state.clone();
                    self.note(&mut next, || {
                        let now = &state.threads[t].now;
                        let at = self.code.lines[now.rip].at;
                        format!("cpu {cpu} thread {t} {at:#x} script {}.{}", now.script, now.place)
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
                        // It may leave only, to come back or go elsewhere.
                        let mut left = state.clone();
                        left.switches -= 1;
                        self.interrupt(&mut left.threads[t]);
                        left.threads[t].index = 0;
                        left.cpus[cpu] = None;
                        self.note(&mut left, || format!("thread {t} leaves cpu {cpu}"));
                        for other in self.ready(state) {
                            self.schedule(&left, other, cpu, into);
                        }
                        into.push(left);
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
        let all = 0..INDICES as u64;
        let ids: Vec<u64> = if self.setting.by_id { all.filter(|&id| !taken(id)).collect() } else { vec![cpu as u64] };
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
        if let Some(range) = self.code.ranges.iter().find(|range| range.descriptor == thread.rseq_cs)
            && range.lines.contains(&thread.now.rip)
        {
            thread.now.rip = range.abort;
            // What the abort handler finds in these means nothing.
            range.scratch.iter().for_each(|&r| thread.now.regs[r] = 0);
            self.explored.aborts += 1;
        }
        thread.rseq_cs = 0;
    }

    fn signal(&mut self, state: &mut State, t: usize) {
        let handler = self.setting.threads.len();
        let thread = &mut state.threads[t];
        self.interrupt(thread);
        thread.signals -= 1;
        thread.outer = Some(Box::new(std::mem::replace(&mut thread.now, Context::new(handler))));
    }

    /// One step of a thread: what its script does between calls, or an instruction; and all instructions behind it that
    /// are alone.
    fn step(&mut self, state: &mut State, t: usize) -> Result<(), String> {
        if state.threads[t].now.rip == 0 {
            self.script_step(state, t)?;
        } else {
            self.instruction(state, t)?;
        }
        while !state.threads[t].done && state.threads[t].now.rip != 0 && self.is_alone(state, t)? {
            self.instruction(state, t)?;
        }
        Ok(())
    }

    fn script_step(&mut self, state: &mut State, t: usize) -> Result<(), String> {
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
                    thread.now.regs[RSP] = STACK_END;
                    thread.now.rip = self.code.entries[name];
                }
                Step::Load(at, local) => {
                    let value = self.load(state, t, at, 8)?;
                    state.threads[t].now.locals[local] = value;
                }
                Step::Store(at, value) => self.store(state, t, at, 8, value)?,
                Step::Membarrier => {
                    // The caller's own CPU runs the caller; other threads of that CPU are interrupted already.
                    for other in state.cpus.clone().into_iter().flatten().filter(|&other| other != t) {
                        self.interrupt(&mut state.threads[other]);
                    }
                }
                Step::Done => match thread.outer.take() {
                    Some(outer) => thread.now = *outer,
                    None => thread.done = true,
                },
            }
            return Ok(());
        }
    }

    /// Whether nobody can tell if the thread stands before or behind its next instruction: an interruption has the same effect,
    /// and other threads see nothing of it. So it is taken together with the instruction before.
    ///
    /// It leads neither into a range nor out of one. It touches only registers, the thread's own stack, or words that nobody
    /// writes or nobody else uses; or it reads, inside of a range, what changes only with the interruption that makes it read
    /// again: the index, and all memory where no other thread can run at the same time.
    fn is_alone(&mut self, state: &State, t: usize) -> Result<bool, String> {
        let line = &self.code.lines[state.threads[t].now.rip];
        if !line.stays || self.manner.one_by_one {
            return Ok(false);
        }
        let in_range = line.range.is_some();
        let place = match line.access {
            Access::Nothing | Access::Stack | Access::CpuId => return Ok(true),
            Access::Index => return Ok(in_range),
            Access::SequenceWord => return Ok(false),
            Access::Load | Access::Store => {
                let at = address(line.memory(), &state.threads[t]);
                if is_on_stack(at) {
                    return Ok(true);
                }
                place(at, line.memory().bytes())?
            }
        };
        let other_cpus = state.cpus.len() > 1 && state.threads.iter().filter(|thread| !thread.done).count() > 1;
        let word = self.uses[place];
        Ok(match line.access {
            Access::Load => word.written == Who::Nobody || word.is_of(who(state, t)) || in_range && !other_cpus,
            // One that an abort leaves behind may be seen by the thread itself.
            _ => !in_range && word.is_of(who(state, t)),
        })
    }

    /// Notes who uses a word, and whether that changes what it was taken for.
    fn used(&mut self, state: &State, t: usize, place: usize, writes: bool) {
        let who = who(state, t);
        let word = &mut self.uses[place];
        let before = *word;
        if writes {
            word.written = word.written.and(who);
        } else {
            word.read = word.read.and(who);
        }
        let was_constant = before.written == Who::Nobody && before.read != Who::Nobody;
        let was_own = |who: Who| matches!(who, Who::One(one) if before.is_of(one) && !word.is_of(one));
        self.surprised |= was_constant && writes && !word.is_of(who)
            || !was_constant && (was_own(before.written) || was_own(before.read));
    }

    fn load(&mut self, state: &mut State, t: usize, at: u64, size: usize) -> Result<u64, String> {
        let place = place(at, size)?;
        self.used(state, t, place, false);
        let whole = state.memory.words[place];
        Ok(if size == 4 { whole >> (at % 8 * 8) & 0xffff_ffff } else { whole })
    }

    fn store(&mut self, state: &mut State, t: usize, at: u64, size: usize, value: u64) -> Result<(), String> {
        let place = place(at, size)?;
        self.used(state, t, place, true);
        let whole = state.memory.words[place];
        let shift = at % 8 * 8;
        let value = if size == 4 { whole & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift } else { value };
        state.memory.set(place, value);
        Ok(())
    }

    /// The value of an operand.
    fn value(&mut self, o: &Operand, state: &mut State, t: usize) -> Result<u64, String> {
        match *o {
            Operand::Register { n, size } => {
                let value = state.threads[t].now.regs[n];
                Ok(match size {
                    1 => value & 0xff,
                    4 => value & 0xffff_ffff,
                    _ => value,
                })
            }
            Operand::Memory { fs: true, .. } => match address(o, &state.threads[t]) {
                INDEX => Ok(state.threads[t].index),
                RSEQ_CS => Ok(state.threads[t].rseq_cs),
                // By which a sequence knows that the thread is registered.
                CPU_ID => Ok(0),
                at => Err(format!("a read of the thread's memory at {at:#x}")),
            },
            Operand::Memory { size, .. } => {
                let at = address(o, &state.threads[t]);
                match on_stack(&mut state.threads[t], at) {
                    Some(word) => Ok(*word),
                    None => self.load(state, t, at, size),
                }
            }
            Operand::Value(value) => Ok(value),
            Operand::None => Err("an operand that is not there".into()),
        }
    }

    fn set(&mut self, o: &Operand, state: &mut State, t: usize, value: u64) -> Result<(), String> {
        match *o {
            Operand::Register { n, size } => {
                let place = &mut state.threads[t].now.regs[n];
                *place = match size {
                    1 => *place & !0xff | value & 0xff,
                    4 => value & 0xffff_ffff,
                    _ => value,
                };
            }
            Operand::Memory { fs: true, .. } => match address(o, &state.threads[t]) {
                RSEQ_CS => state.threads[t].rseq_cs = value,
                at => return Err(format!("a store to the thread's memory at {at:#x}")),
            },
            Operand::Memory { size, .. } => {
                let at = address(o, &state.threads[t]);
                match on_stack(&mut state.threads[t], at) {
                    Some(word) => *word = value,
                    None => self.store(state, t, at, size, value)?,
                }
            }
            _ => return Err("an operand that cannot be changed".into()),
        }
        Ok(())
    }

    fn instruction(&mut self, state: &mut State, t: usize) -> Result<(), String> {
        let code = self.code;
        let line = &code.lines[state.threads[t].now.rip];
        state.threads[t].now.rip = line.next;
        if line.is_nothing {
            return Ok(());
        }
        let (a, b) = (&line.operands[0], &line.operands[1]);
        match line.mnemonic {
            Mnemonic::Pause => {}
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.value(b, state, t)?;
                self.set(a, state, t, value)?;
            }
            Mnemonic::Lea => {
                let value = address(b, &state.threads[t]);
                self.set(a, state, t, value)?;
            }
            Mnemonic::Cmp | Mnemonic::Test => {
                let (a, b) = (self.value(a, state, t)?, self.value(b, state, t)?);
                let (a, b) = if line.mnemonic == Mnemonic::Cmp { (a, b) } else { (a & b, 0) };
                compare(&mut state.threads[t], a, b);
            }
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Imul
            | Mnemonic::And
            | Mnemonic::Xor
            | Mnemonic::Shl
            | Mnemonic::Shr => {
                let (left, right) = (self.value(a, state, t)?, self.value(b, state, t)?);
                if line.mnemonic == Mnemonic::Sub {
                    compare(&mut state.threads[t], left, right);
                }
                let value = match line.mnemonic {
                    Mnemonic::Add => left.wrapping_add(right),
                    Mnemonic::Sub => left.wrapping_sub(right),
                    Mnemonic::Imul => left.wrapping_mul(right),
                    Mnemonic::And => left & right,
                    Mnemonic::Xor => left ^ right,
                    Mnemonic::Shr => left >> right,
                    _ => left << right,
                };
                self.set(a, state, t, value)?;
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let value = self.value(a, state, t)?;
                let by = if line.mnemonic == Mnemonic::Inc { 1 } else { u64::MAX };
                self.set(a, state, t, value.wrapping_add(by))?;
            }
            Mnemonic::Cmova => {
                let value = self.value(b, state, t)?;
                if holds(line, &state.threads[t]) {
                    self.set(a, state, t, value)?;
                }
            }
            Mnemonic::Sete | Mnemonic::Setne => {
                let value = u64::from(holds(line, &state.threads[t]));
                self.set(a, state, t, value)?;
            }
            Mnemonic::Cmpxchg => {
                let (seen, new) = (self.value(a, state, t)?, self.value(b, state, t)?);
                let wanted = state.threads[t].now.regs[0];
                compare(&mut state.threads[t], wanted, seen);
                if wanted == seen {
                    self.set(a, state, t, new)?;
                } else {
                    state.threads[t].now.regs[0] = seen;
                }
            }
            Mnemonic::Cmpxchg16b => {
                let at = address(a, &state.threads[t]);
                if !at.is_multiple_of(16) {
                    return Err(format!("a pair at {at:#x}"));
                }
                let seen = [self.load(state, t, at, 8)?, self.load(state, t, at + 8, 8)?];
                let regs = &mut state.threads[t].now.regs;
                let (wanted, new) = ([regs[0], regs[2]], [regs[3], regs[1]]);
                (regs[0], regs[2]) = (seen[0], seen[1]);
                state.threads[t].now.zero = seen == wanted;
                if seen == wanted {
                    self.store(state, t, at, 8, new[0])?;
                    self.store(state, t, at + 8, 8, new[1])?;
                }
            }
            Mnemonic::Xchg => {
                let (left, right) = (self.value(a, state, t)?, self.value(b, state, t)?);
                self.set(a, state, t, right)?;
                self.set(b, state, t, left)?;
            }
            Mnemonic::Push => {
                let value = self.value(a, state, t)?;
                push(&mut state.threads[t], value)?;
            }
            Mnemonic::Pop => {
                let value = pop(&mut state.threads[t])?;
                self.set(a, state, t, value)?;
            }
            Mnemonic::Call => {
                push(&mut state.threads[t], line.next as u64)?;
                state.threads[t].now.rip = line.target;
            }
            Mnemonic::Ret if state.threads[t].now.regs[RSP] == STACK_END => {
                state.threads[t].now.rip = 0;
                state.threads[t].now.stack = [0; STACK_WORDS];
            }
            Mnemonic::Ret => state.threads[t].now.rip = pop(&mut state.threads[t])? as usize,
            _ => match line.flow {
                FlowControl::ConditionalBranch => {
                    if holds(line, &state.threads[t]) {
                        state.threads[t].now.rip = line.target;
                    }
                }
                FlowControl::UnconditionalBranch => state.threads[t].now.rip = line.target,
                _ => return Err(format!("the machine does not know {:?}", line.mnemonic)),
            },
        }
        Ok(())
    }
}

/// A thread, or its handler.
fn who(state: &State, t: usize) -> usize {
    2 * t + usize::from(state.threads[t].outer.is_some())
}

/// The place in memory of a word, or of what is in it: so many bytes.
fn place(at: u64, bytes: usize) -> Result<usize, String> {
    let in_slot = at.checked_sub(SLOT).map(|o| (o / SLAB as u64, o % SLAB as u64 / 8));
    let place = match in_slot {
        Some((index, word)) => (index < INDICES as u64 && word < 2).then_some(WORDS + (2 * index + word) as usize),
        None => at.checked_sub(MEMORY).map(|o| (o / 8) as usize).filter(|&o| o < WORDS),
    };
    place.filter(|_| at.is_multiple_of(bytes as u64)).ok_or_else(|| format!("an access to {at:#x}, which nobody has"))
}

fn is_on_stack(at: u64) -> bool {
    (STACK..STACK_END).contains(&at)
}

fn on_stack(thread: &mut Thread, at: u64) -> Option<&mut u64> {
    is_on_stack(at).then(|| &mut thread.now.stack[((at - STACK) / 8) as usize])
}

fn push(thread: &mut Thread, value: u64) -> Result<(), String> {
    thread.now.regs[RSP] -= 8;
    *on_stack(thread, thread.now.regs[RSP]).ok_or("the stack is full")? = value;
    Ok(())
}

fn pop(thread: &mut Thread) -> Result<u64, String> {
    let value = std::mem::take(on_stack(thread, thread.now.regs[RSP]).ok_or("the stack is empty")?);
    thread.now.regs[RSP] += 8;
    Ok(value)
}

fn address(o: &Operand, thread: &Thread) -> u64 {
    let Operand::Memory { base, index, scale, displacement, .. } = *o else { return 0 };
    let value = |r: Option<usize>| r.map_or(0, |n| thread.now.regs[n]);
    value(base).wrapping_add(value(index).wrapping_mul(scale)).wrapping_add(displacement)
}

fn compare(thread: &mut Thread, a: u64, b: u64) {
    thread.now.zero = a == b;
    thread.now.carry = a < b;
}

fn holds(line: &Line, thread: &Thread) -> bool {
    let (zero, carry) = (thread.now.zero, thread.now.carry);
    match line.condition {
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::a => !zero && !carry,
        ConditionCode::ae => !carry,
        other => panic!("condition {other:?} is not used by sequences"),
    }
}
