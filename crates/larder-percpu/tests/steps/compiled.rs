//! The instructions in the form in which the machine runs them, with all that can be known about each before.

use std::collections::HashMap;
use std::ops::Range;

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code::Code;
use crate::machine::{CPU_ID, RSEQ_CS};

/// The stack pointer's number.
pub const RSP: usize = 4;

/// What an instruction reads or writes.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    None,
    Register { n: usize, size: usize },
    Memory { fs: bool, base: Option<usize>, index: Option<usize>, scale: u64, displacement: u64, size: usize },
    Value(u64),
}

impl Operand {
    /// How many bytes of memory; a pair is looked at word by word.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory { size, .. } => (*size).min(8),
            _ => 8,
        }
    }
}

/// What an instruction touches besides registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Nothing,
    Stack,
    /// Whether the thread is registered, which does not change.
    CpuId,
    Index,
    SequenceWord,
    Load,
    /// Changes memory, and may read it.
    Store,
}

/// One instruction.
#[derive(Debug)]
pub struct Line {
    /// Its address.
    pub at: u64,
    /// Taken out by a mutant, or outside of what is simulated (the counter of restarts).
    pub is_nothing: bool,
    pub mnemonic: Mnemonic,
    pub condition: ConditionCode,
    pub flow: FlowControl,
    pub operands: [Operand; 2],
    pub next: usize,
    pub target: usize,
    /// The range that it is in.
    pub range: Option<usize>,
    /// Whether it leads neither into a range nor out of one.
    pub stays: bool,
    pub access: Access,
}

impl Line {
    /// The operand in memory.
    pub fn memory(&self) -> &Operand {
        let is_memory = |o: &&Operand| matches!(o, Operand::Memory { .. });
        self.operands.iter().find(is_memory).expect("an instruction that loads or stores has one")
    }
}

/// A descriptor.
pub struct Sequence {
    pub descriptor: u64,
    /// By number: its instructions are decoded in order, and so numbered.
    pub lines: Range<usize>,
    pub abort: usize,
    pub scratch: Vec<usize>,
}

/// All code.
pub struct Compiled {
    /// Line 0 is none.
    pub lines: Vec<Line>,
    pub ranges: Vec<Sequence>,
    pub entries: HashMap<&'static str, usize>,
}

impl Compiled {
    /// The number of a register of 64 bits, or of a part of one.
    pub fn register(r: Register) -> usize {
        r.full_register() as usize - Register::RAX as usize
    }

    /// Where a branch or a call leads; a call to another crate goes through a word that the linker has filled.
    pub fn target(i: &Instruction) -> u64 {
        if i.flow_control() != FlowControl::IndirectCall {
            return i.near_branch_target();
        }
        assert!(i.is_ip_rel_memory_operand(), "{i:?}");
        let word = std::ptr::with_exposed_provenance::<u64>(i.ip_rel_memory_address() as usize);
        // SAFETY: a word of the program's own table.
        unsafe { word.read() }
    }

    pub fn new(code: &Code) -> Self {
        let mut places: Vec<u64> = code.lines.keys().copied().collect();
        places.sort_unstable();
        // What is not there is line 0, which nothing can run.
        let number = |at: u64| places.binary_search(&at).map_or(0, |n| n + 1);
        let range_at = |at: u64| code.ranges.values().position(|r| (r.0..r.0 + r.1).contains(&at));
        let mut lines = vec![line(0, None, [0, 0], None, false)];
        for &at in &places {
            let (i, next) = &code.lines[&at];
            let range = range_at(at);
            let target = i.filter(leads_on).map_or(0, |i| Self::target(&i));
            let returns = i.is_some_and(|i| matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Ret));
            let stays = match i {
                _ if returns => range.is_none(),
                Some(i) if i.flow_control() == FlowControl::UnconditionalBranch => range_at(target) == range,
                _ => range_at(*next) == range && (target == 0 || range_at(target) == range),
            };
            lines.push(line(at, *i, [number(*next), number(target)], range, stays));
        }
        let ranges = code.ranges.iter().map(|(&descriptor, &(start, length, abort))| Sequence {
            descriptor,
            lines: places.partition_point(|&at| at < start) + 1..places.partition_point(|&at| at < start + length) + 1,
            abort: number(abort),
            scratch: code.scratch[&descriptor].clone(),
        });
        let entries = code.entries.iter().map(|(&name, &at)| (name, number(at))).collect();
        Self { ranges: ranges.collect(), lines, entries }
    }
}

fn leads_on(i: &Instruction) -> bool {
    use FlowControl::{Call, ConditionalBranch, IndirectCall, UnconditionalBranch};
    [Call, ConditionalBranch, IndirectCall, UnconditionalBranch].contains(&i.flow_control())
}

fn line(at: u64, i: Option<Instruction>, [next, target]: [usize; 2], range: Option<usize>, stays: bool) -> Line {
    let none = Instruction::default();
    let real = i.filter(|i| !(i.mnemonic() == Mnemonic::Inc && i.has_lock_prefix()));
    let i = real.as_ref().unwrap_or(&none);
    Line {
        at,
        is_nothing: real.is_none(),
        mnemonic: i.mnemonic(),
        condition: i.condition_code(),
        flow: i.flow_control(),
        operands: [operand(i, 0), operand(i, 1)],
        next,
        target,
        range,
        stays,
        access: access(i),
    }
}

fn operand(i: &Instruction, n: u32) -> Operand {
    if n >= i.op_count() || leads_on(i) {
        return Operand::None;
    }
    let number = |r: Register| (r != Register::None).then(|| Compiled::register(r));
    match i.op_kind(n) {
        OpKind::Register => {
            let r = i.op_register(n);
            Operand::Register { n: Compiled::register(r), size: r.size() }
        }
        OpKind::Memory if i.is_ip_rel_memory_operand() => {
            let displacement = i.ip_rel_memory_address();
            Operand::Memory { fs: false, base: None, index: None, scale: 1, displacement, size: 8 }
        }
        OpKind::Memory => Operand::Memory {
            fs: i.memory_segment() == Register::FS,
            base: number(i.memory_base()),
            index: number(i.memory_index()),
            scale: i.memory_index_scale().into(),
            displacement: i.memory_displacement64(),
            size: i.memory_size().size(),
        },
        _ => Operand::Value(i.immediate(n)),
    }
}

fn access(i: &Instruction) -> Access {
    if matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pop | Mnemonic::Call | Mnemonic::Ret) {
        return Access::Stack;
    }
    let memory = (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory);
    let Some(n) = memory.filter(|_| i.mnemonic() != Mnemonic::Lea) else { return Access::Nothing };
    let reads_only = n > 0 && i.mnemonic() != Mnemonic::Xchg || matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
    match (i.memory_segment(), i.memory_base()) {
        (Register::FS, _) if !reads_only => Access::SequenceWord,
        // `cpu_id` is found from `rseq_cs`, the index by a pointer of its own.
        (Register::FS, _) if i.memory_displacement64() == CPU_ID.wrapping_sub(RSEQ_CS) => Access::CpuId,
        (Register::FS, _) => Access::Index,
        (_, Register::RSP) => Access::Stack,
        _ if reads_only => Access::Load,
        _ => Access::Store,
    }
}
