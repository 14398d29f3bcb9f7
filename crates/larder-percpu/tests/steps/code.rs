//! The instructions that the machine runs: each sequence and what calls it, decoded from this program.

use std::collections::HashMap;

use iced_x86::{FlowControl, Instruction, Mnemonic};
use larder_percpu::sequence::Descriptor;
use larder_percpu::sequence::table::SEQUENCES;

use crate::compiled::Compiled;
use crate::copies;
use crate::program::decode;

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
    pub scratch: HashMap<u64, Vec<usize>>,
    /// The descriptor's address of each function.
    named: HashMap<&'static str, u64>,
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
            named: HashMap::new(),
        };
        for entry in SEQUENCES {
            code.add(entry.name, (entry.function)());
        }
        code
    }

    /// As [`Code::shipped`], with the copies for inlining in the place of the sequences that they are copies of.
    pub fn inlined() -> Self {
        let mut code = Self::shipped();
        code.fixed = false;
        for (name, function) in copies::OF_FUNCTIONS {
            code.add(name, function());
        }
        code
    }

    /// As [`Code::inlined`], with those that have another shape in C as they are there.
    pub fn inlined_in_c() -> Self {
        let mut code = Self::inlined();
        for (name, function) in copies::IN_C {
            code.add(name.trim_end_matches(" in C"), function());
        }
        code
    }

    /// The allocation sequences of the fixed heap, which are always inlined.
    pub fn of_the_heap() -> Self {
        let mut code = Self::shipped();
        code.fixed = false;
        for (name, function) in copies::OF_THE_HEAP_TO_CALL {
            code.add(name, function());
        }
        code
    }

    /// A function with one sequence, under a name that may have stood for another one.
    fn add(&mut self, name: &'static str, start: usize) {
        let known: Vec<u64> = self.ranges.keys().copied().collect();
        self.entries.insert(name, start as u64);
        self.read(start as u64);
        let new: Vec<u64> = self.ranges.keys().copied().filter(|at| !known.contains(at)).collect();
        let [descriptor] = new[..] else { panic!("{name} has a descriptor of its own") };
        self.named.insert(name, descriptor);
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
                let scratch = if self.fixed { vec![rax, r10] } else { vec![Compiled::register(i.op0_register())] };
                self.scratch.insert(at, scratch);
                self.read(d.abort as u64);
            }
            match i.flow_control() {
                FlowControl::Return => return,
                FlowControl::ConditionalBranch | FlowControl::Call | FlowControl::IndirectCall => {
                    self.read(Compiled::target(&i));
                }
                FlowControl::UnconditionalBranch => {
                    ip = i.near_branch_target();
                    continue;
                }
                _ => {}
            }
            ip = i.next_ip();
        }
    }

    /// The descriptor's address of a sequence.
    pub fn range_of(&self, name: &str) -> u64 {
        self.named[name]
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
