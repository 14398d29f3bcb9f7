//! The shape of a sequence: its instructions, from arming to commit, without the names of the registers.
//!
//! An inlined sequence is compiled anew wherever it is used, in programs that no test sees. The text is the same each time; the
//! compiler chooses registers, places and encodings. So two copies of one shape do the same, and what was proved of one
//! is true of the other. Tests prove it of the copies in them; the linter finds the same shapes in what is built.

// Not every test uses all of it.
#![allow(dead_code)]

use std::fmt::Write;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Letters for registers, in the order in which a sequence names them.
#[derive(Default)]
struct Names(Vec<Register>);

impl Names {
    /// `a` is 64 bits, `a.4` the lower four bytes.
    fn of(&mut self, register: Register) -> String {
        let full = register.full_register();
        let n = self.0.iter().position(|known| *known == full).unwrap_or_else(|| {
            self.0.push(full);
            self.0.len() - 1
        });
        let letter = char::from(b'a' + n as u8);
        if register.size() == 8 { letter.to_string() } else { format!("{letter}.{}", register.size()) }
    }

    /// `[a + b*4 - 56]`, with its size where no register tells it.
    fn memory(&mut self, i: &Instruction) -> String {
        if i.is_ip_rel_memory_operand() {
            return "[descriptor]".into();
        }
        let mut text = String::new();
        if i.memory_segment() == Register::FS {
            text.push_str("fs:");
        }
        text.push('[');
        let mut parts = vec![];
        if i.memory_base() != Register::None {
            parts.push(self.of(i.memory_base()));
        }
        if i.memory_index() != Register::None {
            let scale = i.memory_index_scale();
            let index = self.of(i.memory_index());
            parts.push(if scale == 1 { index } else { format!("{index}*{scale}") });
            // Base and index may change places where neither is scaled.
        }
        text.push_str(&parts.join(" + "));
        match i.memory_displacement64() as i64 {
            0 => {}
            n if n < 0 => _ = write!(text, " - {}", -n),
            n => _ = write!(text, " + {n}"),
        }
        text.push(']');
        text
    }
}

/// One line for each instruction, of which the first `arming` come before the range.
pub fn shape(arming: &[Instruction], range: &[Instruction]) -> String {
    let mut names = Names::default();
    let (start, end) = (range[0].ip(), range[range.len() - 1].next_ip());
    let mut text = String::new();
    for i in arming.iter().chain(range) {
        if i.has_lock_prefix() {
            text.push_str("lock ");
        }
        let mnemonic = format!("{:?}", i.mnemonic()).to_lowercase();
        text.push_str(&mnemonic);
        if matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
            let target = i.near_branch_target();
            if (start..end).contains(&target) {
                // By how many instructions of the range.
                let place = |at: u64| range.iter().take_while(|j| j.ip() < at).count() as isize;
                _ = write!(text, " {:+}", place(target) - place(i.ip()));
            } else {
                text.push_str(" out");
            }
        }
        let mut separator = ' ';
        for n in 0..i.op_count() {
            let operand = match i.op_kind(n) {
                OpKind::Register => names.of(i.op_register(n)),
                OpKind::Memory => {
                    let size = i.memory_size().size();
                    let told = i.op_kind(if n == 0 { 1.min(i.op_count() - 1) } else { 0 }) == OpKind::Register;
                    if told { names.memory(i) } else { format!("{size}:{}", names.memory(i)) }
                }
                OpKind::NearBranch64 => continue,
                // By how much an index is shifted depends on the content's size.
                _ if i.mnemonic() == Mnemonic::Shl => "size".into(),
                _ => i.immediate(n).to_string(),
            };
            _ = write!(text, "{separator}{operand}");
            separator = ',';
        }
        // What it uses without naming it.
        let silent: &[Register] = match i.mnemonic() {
            Mnemonic::Cmpxchg => &[Register::RAX],
            Mnemonic::Cmpxchg16b => &[Register::RAX, Register::RDX, Register::RBX, Register::RCX],
            _ => &[],
        };
        for register in silent {
            _ = write!(text, " {}", names.of(*register));
        }
        text.push('\n');
    }
    text
}

/// Whether a shape is that of `written`, as `shape` makes it. The compiler may have given one register to two that are only read.
pub fn is_copy(shape: &str, written: &str) -> bool {
    let (ours, theirs) = (tokens(shape), tokens(written));
    if ours.len() != theirs.len() {
        return false;
    }
    let changed = changed(written);
    let mut pairs: Vec<(&str, &str)> = vec![];
    for (&our, &their) in ours.iter().zip(&theirs) {
        if !is_register(their) {
            if our != their {
                return false;
            }
            continue;
        }
        match pairs.iter().find(|(_, known)| *known == their) {
            Some((register, _)) if *register != our => return false,
            Some(_) => {}
            None => {
                let shares = |(register, known): &(&str, &str)| {
                    *register == our && (changed.contains(known) || changed.contains(&their))
                };
                if !is_register(our) || pairs.iter().any(shares) {
                    return false;
                }
                pairs.push((our, their));
            }
        }
    }
    true
}

/// Words and signs of a shape; a register is one letter.
fn tokens(text: &str) -> Vec<&str> {
    let mut all = vec![];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (token, more) = rest.split_at(if word == 0 { first.len_utf8() } else { word });
        all.push(token);
        rest = more;
    }
    all
}

fn is_register(token: &str) -> bool {
    token.len() == 1 && token.chars().all(|c| c.is_ascii_lowercase())
}

/// The registers that the sequence changes: first operands of all but comparisons, and what is used silently.
fn changed(shape: &str) -> Vec<&str> {
    let mut all = vec![];
    for line in shape.lines() {
        let Some((mnemonic, operands)) = line.split_once(' ') else { continue };
        if mnemonic.starts_with("cmpxchg") {
            all.extend(tokens(operands).into_iter().filter(|token| is_register(token)));
        } else if !matches!(mnemonic, "cmp" | "test") {
            let first = operands.split(['.', ',']).next().unwrap_or_default();
            all.extend(Some(first).filter(|first| is_register(first)));
        }
    }
    all
}

/// The shapes of a file as `golden/inlined.txt`: names and texts.
pub fn written(golden: &str) -> Vec<(&str, String)> {
    let mut all: Vec<(&str, String)> = vec![];
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        match line.trim_start().split_once(' ') {
            Some((count, name)) if count.chars().all(|c| c.is_ascii_digit()) => all.push((name, String::new())),
            _ => {
                if let Some((_, text)) = all.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    all
}
