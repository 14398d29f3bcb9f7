//! How many instructions each sequence takes when nothing interferes and nothing is empty, and of the inlined ones, which.
//!
//! The files in `golden` are what a reviewer reads: a change there is argued for in the commit that makes it. A function's
//! count is from its call to its return, an inlined copy's from arming to commit.

#![cfg(not(feature = "inject"))]

use std::collections::BTreeSet;

use iced_x86::{FlowControl, Mnemonic};
use larder_percpu::sequence::table::SEQUENCES;

#[path = "copies/mod.rs"]
mod copies;
#[path = "shape/program.rs"]
mod program;
#[path = "shape/mod.rs"]
mod shape;

const INSTRUCTIONS: &str = include_str!("golden/instructions.txt");
const INLINED: &str = include_str!("golden/inlined.txt");

/// The instructions of the straight way from the function's entry to its return; a loop's body counts once.
fn straight(function: usize) -> usize {
    let mut ip = function as u64;
    let mut count = 0;
    loop {
        let i = program::decode(ip);
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

fn without_comments(golden: &str) -> String {
    golden.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect()
}

#[test]
fn every_sequence_takes_as_many_instructions_as_written_down() {
    let now: String = SEQUENCES.iter().map(|e| format!("{:3} {}\n", straight((e.function)()), e.name)).collect();
    assert_eq!(
        now,
        without_comments(INSTRUCTIONS),
        "the table in tests/golden/instructions.txt must be (and why):\n{now}"
    );
}

#[test]
fn every_inlined_sequence_has_the_instructions_written_down() {
    let mut now = String::new();
    let mut shapes = BTreeSet::new();
    let others = copies::IN_C.into_iter().chain(copies::OF_THE_HEAP);
    for (name, function) in copies::OF_FUNCTIONS.into_iter().chain(others) {
        let (count, text) = program::shape_in(function());
        assert!(shapes.insert(text.clone()), "{name} has the shape of another");
        now += &format!("{count:3} {name}\n{text}");
    }
    assert_eq!(now, without_comments(INLINED), "the texts in tests/golden/inlined.txt must be (and why):\n{now}");
}

/// By what a copy is recognised: the same instructions with other registers, of which two may be one if neither is changed.
#[test]
fn a_copy_is_recognised_by_its_shape() {
    let all = shape::written(INLINED);
    assert_eq!(all.len(), copies::OF_FUNCTIONS.len() + copies::IN_C.len() + copies::OF_THE_HEAP.len());
    for (name, text) in &all {
        for (other, written) in &all {
            assert_eq!(shape::is_copy(text, written), name == other, "{name} and {other}");
        }
    }
    let push = &all.iter().find(|(name, _)| *name == "list_push").unwrap().1;
    let is_push = |from: &str, to: &str| shape::is_copy(&push.replace(from, to), push);
    assert!(is_push("mov [a],h", "mov [a],g"), "a chain of one node: first and last in one register");
    assert!(!is_push("mov f,", "mov b,"), "a register that is changed is nobody else's");
    assert!(!is_push("mov [g],f\nmov [a],h", "mov [a],h\nmov [g],f"), "the commit is last");
    assert!(!is_push("8:[a + 8]", "8:[a + 16]"), "another word");
    assert!(!is_push("jae out\n", ""), "a test is missing");
}
