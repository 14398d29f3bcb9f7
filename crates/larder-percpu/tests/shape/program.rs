//! The running program's own sequences, as instructions.

// Not every test uses all of it.
#![allow(dead_code)]

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use larder_percpu::sequence::{Descriptor, descriptors};

/// An instruction of this program.
pub fn decode(ip: u64) -> Instruction {
    const LONGEST: usize = 15;
    // SAFETY: the program's text; behind a sequence's last instruction are others.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(ip as usize), LONGEST) };
    let i = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    assert!(!i.is_invalid(), "{ip:#x} does not decode");
    i
}

/// The instructions in a stretch of text.
pub fn between(start: u64, end: u64) -> Vec<Instruction> {
    let mut all = vec![];
    let mut ip = start;
    while ip < end {
        let i = decode(ip);
        ip = i.next_ip();
        all.push(i);
    }
    assert_eq!(ip, end, "the stretch ends with an instruction");
    all
}

/// The descriptor that a function with one sequence arms with.
pub fn descriptor_of(function: usize) -> &'static Descriptor {
    let mut ip = function as u64;
    loop {
        let i = decode(ip);
        let named = |d: &&&Descriptor| {
            i.mnemonic() == Mnemonic::Lea
                && i.is_ip_rel_memory_operand()
                && i.ip_rel_memory_address() == std::ptr::from_ref::<Descriptor>(d).addr() as u64
        };
        if let Some(d) = descriptors().iter().find(named) {
            return d;
        }
        assert_ne!(i.flow_control(), FlowControl::Return, "the function has a sequence");
        ip = i.next_ip();
    }
}

/// The instructions that arm: from where the abort handler goes to the beginning of the range.
pub fn arming_of(d: &Descriptor) -> Vec<Instruction> {
    let mut ip = d.abort as u64;
    loop {
        let i = decode(ip);
        if i.flow_control() == FlowControl::UnconditionalBranch {
            return between(i.near_branch_target(), d.start as u64);
        }
        ip = i.next_ip();
    }
}

/// The shape of a function's sequence.
pub fn shape_in(function: usize) -> (usize, String) {
    let d = descriptor_of(function);
    let (arming, range) = (arming_of(d), between(d.start as u64, (d.start + d.length) as u64));
    (arming.len() + range.len(), crate::shape::shape(&arming, &range))
}
