//! What the kernel asks of every sequence in the program, and what the project does: read from the instructions.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use larder_percpu::sequence::{Descriptor, descriptors};

/// The word before an abort handler by which the kernel knows it (librseq's `RSEQ_SIG` on x86).
const SIGNATURE: u32 = 0x5305_3053;

/// The instructions of `[from, to)`.
fn decode(from: usize, to: usize) -> Vec<Instruction> {
    // SAFETY: the program's text.
    let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(from), to - from) };
    let all: Vec<_> = Decoder::with_ip(64, code, from as u64, DecoderOptions::NONE).iter().collect();
    assert!(all.iter().all(|i| !i.is_invalid()), "{from:#x}..{to:#x} does not decode");
    all
}

/// The instruction at an address.
fn decode_one(at: usize) -> Instruction {
    const LONGEST: usize = 15;
    // SAFETY: the program's text goes on behind the abort handler: the other ways out of the sequence are there.
    let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at), LONGEST) };
    Decoder::with_ip(64, code, at as u64, DecoderOptions::NONE).decode()
}

/// Whether the instruction writes memory.
fn writes_memory(i: &Instruction) -> bool {
    let writes = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    InstructionInfoFactory::new().info(i).used_memory().iter().any(|m| writes(m.access()))
}

fn lint(d: &Descriptor) {
    let (start, end) = (d.start, d.start + d.length);
    let body = decode(start, end);
    for (n, i) in body.iter().enumerate() {
        let last = n + 1 == body.len();
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch => {
                let target = i.near_branch_target() as usize;
                assert!(!(start..end).contains(&target), "{i:?} leads back into the sequence");
            }
            other => panic!("{other:?} in a sequence: {i:?}"),
        }
        assert!(!i.is_stack_instruction(), "{i:?} uses the stack");
        assert!(!matches!(i.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int), "{i:?}");
        assert!(!i.has_lock_prefix(), "{i:?} is locked: no other processor uses the slot");
        assert_eq!(writes_memory(i), last, "the only store is the commit, last: {i:?} at {n} of {}", body.len());
    }
    // The abort handler lies outside, behind the signature, and goes back to where the sequence is armed.
    assert!(!(start..end).contains(&d.abort));
    // SAFETY: four bytes of the program's text.
    let signature = unsafe { core::ptr::with_exposed_provenance::<u32>(d.abort - 4).read_unaligned() };
    assert_eq!(signature, SIGNATURE);
    let jump = decode_one(d.abort);
    assert_eq!(jump.flow_control(), FlowControl::UnconditionalBranch, "{jump:?}");
    let again = jump.near_branch_target() as usize;
    assert!(again < start && start - again < 64, "the abort handler must arm again");
    let arming = decode(again, start);
    let arms = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Mov && i.memory_segment() == Register::FS && i.op0_kind() == OpKind::Memory
    };
    assert!(arming.last().is_some_and(arms), "the store that arms comes right before the sequence: {arming:?}");
    let names_descriptor = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Lea && i.ip_rel_memory_address() as usize == core::ptr::from_ref(d).addr()
    };
    assert!(arming.iter().any(names_descriptor), "it arms with its own descriptor: {arming:?}");
    assert!(arming.iter().filter(|i| writes_memory(i)).count() == 1);
    // The index is read inside: a load relative to the thread pointer.
    let reads_index = |i: &Instruction| i.memory_segment() == Register::FS && !writes_memory(i);
    assert!(body.iter().any(reads_index), "the index is read inside the sequence");
    assert!(!arming.iter().any(reads_index), "the index is not read before");
}

#[test]
fn every_sequence_keeps_the_rules() {
    // The heap's sequences are in the program because this calls them.
    // SAFETY: looked at only.
    assert!(!unsafe { larder_fixed::allocate(larder_fixed::kind::NORMAL, 24) }.is_null());
    // Those that count their restarts are larder-percpu's functions, which may be linked as well: its own linter knows what each may do.
    let counts = |d: &&Descriptor| decode_one(d.abort).has_lock_prefix();
    let all: Vec<_> = descriptors().iter().filter(|d| !counts(d)).collect();
    let mut starts: Vec<_> = all.iter().map(|d| d.start).collect();
    starts.sort_unstable();
    starts.dedup();
    assert!(starts.len() >= 2, "at least a bump and a replace");
    for d in &all {
        lint(d);
    }
    // Both sorts of commit are there.
    let commits: Vec<_> =
        all.iter().map(|d| decode(d.start, d.start + d.length).last().expect("a commit").mnemonic()).collect();
    assert!(commits.contains(&Mnemonic::Mov) && commits.contains(&Mnemonic::Cmpxchg16b), "{commits:?}");
}
