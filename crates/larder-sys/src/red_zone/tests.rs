//! The decoder against a disassembler, on the whole C library; and what is said of code whose red zone is known.

use super::*;
use decode::{Instruction, LONGEST};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, Register};

/// The executable segment of the C library, and its address.
fn c_library() -> (&'static [u8], usize) {
    find_c_library();
    let [low, high] = C_LIBRARY.each_ref().map(|end| end.load(Ordering::Relaxed));
    assert!(low < high, "the C library is mapped");
    // SAFETY: readable, and never unmapped.
    (unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(low), high - low) }, low)
}

/// Every instruction of the C library: its offset, as the disassembler has it.
fn disassembled(code: &'static [u8]) -> impl Iterator<Item = (usize, iced_x86::Instruction)> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    core::iter::from_fn(move || {
        if !decoder.can_decode() {
            return None;
        }
        let at = decoder.position();
        Some((at, decoder.decode()))
    })
}

fn is_stack_pointer(register: Register) -> bool {
    register.full_register() == Register::RSP
}

#[test]
fn what_is_known_of_an_instruction_is_what_a_disassembler_says() {
    let (code, _) = c_library();
    let mut info = InstructionInfoFactory::new();
    let (mut known, mut all) = (0, 0);
    for (at, theirs) in disassembled(code).filter(|(_, theirs)| !theirs.is_invalid()) {
        all += 1;
        let Some(ours) = code.get(at..).and_then(decode) else { continue };
        known += 1;
        assert_eq!(ours.length, theirs.len(), "{theirs} at {at:#x}");
        assert!(ours.length <= LONGEST);
        let target = || (theirs.near_branch_target() as i64 - theirs.next_ip() as i64) as i32;
        let flow = match theirs.flow_control() {
            FlowControl::Next => Flow::Next,
            FlowControl::ConditionalBranch => Flow::Branch(target()),
            FlowControl::UnconditionalBranch => Flow::Jump(target()),
            FlowControl::Call | FlowControl::IndirectCall
                if !theirs.is_call_near() && !theirs.is_call_near_indirect() =>
            {
                Flow::Next
            }
            FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
            FlowControl::Return | FlowControl::Exception | FlowControl::Interrupt => Flow::Away,
            other => panic!("{theirs} at {at:#x}: {other:?}"),
        };
        if theirs.mnemonic() != iced_x86::Mnemonic::Hlt {
            assert_eq!(ours.flow, flow, "{theirs} at {at:#x}");
        }
        let goes_on = !matches!(ours.flow, Flow::Call | Flow::Away);
        if goes_on {
            assert_eq!(
                ours.moves,
                theirs.stack_pointer_increment() + added_to_stack_pointer(&theirs),
                "{theirs} at {at:#x}"
            );
        }
        let used = info.info(&theirs);
        for memory in used.used_memory().iter().filter(|_| goes_on) {
            let pushes_or_pops = theirs.is_stack_instruction();
            let on_stack = is_stack_pointer(memory.base()) || is_stack_pointer(memory.index());
            if on_stack && !pushes_or_pops && memory.access() != OpAccess::NoMemAccess {
                assert_eq!(ours.touches, Some(memory.displacement() as i32), "{theirs} at {at:#x}");
            }
            let behind = memory.base() != Register::None && (memory.displacement() as i64) < 0;
            let plain = memory.segment() == Register::DS || memory.segment() == Register::SS;
            assert!(
                !behind
                    || on_stack
                    || !plain
                    || memory.access() == OpAccess::NoMemAccess
                    || memory.base() == Register::RIP,
                "{theirs} at {at:#x}"
            );
        }
        let reads_stack_pointer = used.used_registers().iter().any(|used| is_stack_pointer(used.register()));
        let explained = theirs.is_stack_instruction() || ours.touches.is_some() || ours.moves != 0 || !goes_on;
        // As an index there is none; a nop names what it likes.
        assert!(
            !reads_stack_pointer || explained || theirs.mnemonic() == iced_x86::Mnemonic::Nop,
            "{theirs} at {at:#x}"
        );
    }
    assert!(known > all / 2, "{known} of {all}");
}

/// What `add`, `sub` and `lea` add to the stack pointer.
fn added_to_stack_pointer(instruction: &iced_x86::Instruction) -> i32 {
    use iced_x86::Mnemonic;
    if instruction.op_count() != 2
        || instruction.op0_kind() != iced_x86::OpKind::Register
        || !is_stack_pointer(instruction.op0_register())
    {
        return 0;
    }
    match instruction.mnemonic() {
        Mnemonic::Add => instruction.immediate(1) as i32,
        Mnemonic::Sub => -(instruction.immediate(1) as i32),
        Mnemonic::Lea => instruction.memory_displacement64() as i32,
        _ => 0,
    }
}

#[test]
fn most_calls_of_the_c_library_are_known_to_leave_the_red_zone_alone() {
    let (code, low) = c_library();
    let calls: Vec<usize> = disassembled(code)
        .filter(|(_, instruction)| instruction.mnemonic() == iced_x86::Mnemonic::Syscall)
        .map(|(at, instruction)| at + instruction.len())
        .collect();
    let unused = calls.iter().filter(|&&behind| is_unused(code, behind)).count();
    eprintln!("{unused} of {} calls", calls.len());
    assert!(calls.len() > 100 && unused * 2 > calls.len(), "{unused} of {}", calls.len());
    for &behind in &calls {
        let fresh = is_unused(code, behind);
        assert_eq!(is_unused_known(code, low, behind), fresh);
        assert_eq!(is_unused_known(code, low, behind), fresh, "what was remembered");
    }
}

#[test]
fn a_whole_instruction_is_wanted() {
    let whole = [0x48, 0x83, 0xec, 0x28];
    let expected = Instruction { length: 4, flow: Flow::Next, moves: -0x28, touches: None };
    assert_eq!(decode(&whole), Some(expected));
    for length in 0..whole.len() {
        assert_eq!(decode(&whole[..length]), None);
    }
    assert_eq!(decode(&[0x66; 40]), None);
}

/// What is said of `code` from its beginning on.
fn unused(code: &[u8]) -> bool {
    is_unused(code, 0)
}

#[test]
fn code_that_returns_or_calls_has_no_use_for_the_red_zone() {
    // cmp rax, -4096; jbe +1; nop; ret
    assert!(unused(&[0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x76, 1, 0x90, 0xc3]));
    // call; what follows is another matter: mov rax, [rsp - 64]
    assert!(unused(&[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x44, 0x24, 0xc0, 0xc3]));
    // mov rax, [rsp + 8]; add rsp, 0x28; pop rbx; ret
    assert!(unused(&[0x48, 0x8b, 0x44, 0x24, 8, 0x48, 0x83, 0xc4, 0x28, 0x5b, 0xc3]));
    // syscall; jmp -4: for ever
    assert!(unused(&[0x0f, 5, 0xeb, 0xfc]));
}

#[test]
fn a_read_below_the_stack_pointer_is_a_use_wherever_it_is() {
    let read = [0x48, 0x8b, 0x44, 0x24, 0xc0];
    let with = |before: &[u8], behind: &[u8]| [before, &read, behind].concat();
    assert!(!unused(&with(&[], &[0xc3])));
    // je +1; ret
    assert!(!unused(&with(&[0x74, 1, 0xc3], &[0xc3])));
    // jmp +1
    assert!(!unused(&with(&[0xeb, 1, 0xc3], &[0xc3])));
    // Its address: lea rax, [rsp - 8]
    assert!(!unused(&[0x48, 0x8d, 0x44, 0x24, 0xf8, 0xc3]));
    // Through a frame pointer: mov rax, [rbp - 8]
    assert!(!unused(&[0x48, 0x8b, 0x45, 0xf8, 0xc3]));
    // Through a copy: mov rax, rsp
    assert!(!unused(&[0x48, 0x89, 0xe0, 0xc3]));
    // With an index: mov rax, [rsp + rcx]
    assert!(!unused(&[0x48, 0x8b, 4, 0x0c, 0xc3]));
}

#[test]
fn a_frame_made_behind_the_call_is_made_of_the_red_zone() {
    // sub rsp, 16; mov rax, [rsp + 8]
    assert!(!unused(&[0x48, 0x83, 0xec, 16, 0x48, 0x8b, 0x44, 0x24, 8, 0xc3]));
    // lea rsp, [rsp - 16]; mov rax, [rsp + 8]
    assert!(!unused(&[0x48, 0x8d, 0x64, 0x24, 0xf0, 0x48, 0x8b, 0x44, 0x24, 8, 0xc3]));
    // push rax; pop rcx
    assert!(!unused(&[0x50, 0x59, 0xc3]));
    // add rsp, 16; mov rax, [rsp - 8], which lies in what was the frame.
    assert!(unused(&[0x48, 0x83, 0xc4, 16, 0x48, 0x8b, 0x44, 0x24, 0xf8, 0xc3]));
}

#[test]
fn what_cannot_be_followed_may_use_it() {
    // jmp rax
    assert!(!unused(&[0xff, 0xe0]));
    // vmovdqu ymm0, [rdi]
    assert!(!unused(&[0xc5, 0xfe, 0x6f, 7, 0xc3]));
    // The code's end.
    assert!(!unused(&[0x90]));
    // je out of the code
    assert!(!unused(&[0x74, 0x70, 0xc3]));
    // The same place with the stack pointer elsewhere: pop rax; jmp -3
    assert!(!unused(&[0x58, 0xeb, 0xfd]));
    // More branches than places.
    let branches: Vec<u8> = (0..40).flat_map(|_| [0x74, 1, 0xc3]).chain([0xc3]).collect();
    assert!(!unused(&branches));
    // More instructions than steps.
    assert!(!unused(&[&[0x90; STEPS + 1][..], &[0xc3]].concat()));
}
