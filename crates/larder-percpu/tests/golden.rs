//! How many instructions each sequence takes, from its call to its return, when nothing interferes and nothing is empty.
//!
//! `golden/instructions.txt` is what a reviewer reads: a change there is argued for in the commit that makes it.

#![cfg(not(feature = "inject"))]

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use larder_percpu::sequence::table::SEQUENCES;

const GOLDEN: &str = include_str!("golden/instructions.txt");

/// The instructions of the straight way from the function's entry to its return; a loop's body counts once.
fn straight(function: usize) -> usize {
    let mut ip = function as u64;
    let mut count = 0;
    loop {
        const LONGEST: usize = 15;
        // SAFETY: the program's text.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(ip as usize), LONGEST) };
        let i = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        count += 1;
        match i.flow_control() {
            FlowControl::Return => return count,
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::UnconditionalBranch => assert_eq!(i.mnemonic(), Mnemonic::Jmp, "{i:?}"),
            other => panic!("{other:?} in a sequence"),
        }
        ip = i.next_ip();
    }
}

#[test]
fn every_sequence_takes_as_many_instructions_as_written_down() {
    let now: String = SEQUENCES.iter().map(|e| format!("{:3} {}\n", straight((e.function)()), e.name)).collect();
    let golden: String = GOLDEN.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    assert_eq!(now, golden, "the table in tests/golden/instructions.txt must be (and why):\n{now}");
}
