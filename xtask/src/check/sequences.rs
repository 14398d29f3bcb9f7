//! The restartable sequences of the built libraries and of programs that inline them: what the kernel asks, and what the
//! project does, read from the bytes that are shipped.
//!
//! The kernel finds a sequence by its descriptor in the section `__rseq_cs`. An abort address inside the range, or without
//! the signature before it, kills the thread at its next preemption; a call or a store at the wrong place loses memory once
//! in a million aborts. Neither shows in a test run.
//!
//! An inlined sequence is there as often as it is used. Each copy must have, but for the names of registers, the instructions
//! of one that the tests of `larder-percpu` interrupt, explore and mutate: what is proved there is then true here.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use larder_percpu::sequence::table::SEQUENCES;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::workspace::{Workspace, run};
use crate::{critical_sections, stage};

#[path = "../../../crates/larder-percpu/tests/shape/mod.rs"]
mod shape;

/// The inlined sequences, as the tests have them.
const INLINED: &str = include_str!("../../../crates/larder-percpu/tests/golden/inlined.txt");

/// The word before an abort handler by which the kernel knows it (librseq's `RSEQ_SIG` on x86).
const SIGNATURE: u32 = 0x5305_3053;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 32;

/// What a descriptor says, and the name of the function that the sequence is in.
#[derive(Clone, Debug)]
struct Sequence {
    function: String,
    version_and_flags: u64,
    descriptor: u64,
    start: u64,
    length: u64,
    abort: u64,
}

/// A library as it lies in memory.
#[derive(Default)]
struct Image {
    segments: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn bytes(&self, at: u64, length: usize) -> Option<&[u8]> {
        self.segments.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(at.checked_sub(*start)?).ok()?;
            bytes.get(offset..offset.checked_add(length)?)
        })
    }

    fn instruction(&self, at: u64) -> Option<Instruction> {
        const LONGEST: usize = 15;
        let bytes = (1..=LONGEST).rev().find_map(|length| self.bytes(at, length))?;
        let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!i.is_invalid()).then_some(i)
    }
}

/// What the project's table says about a sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Declared {
    private_stores: usize,
    has_loop: bool,
    is_locked: bool,
}

/// A sequence that the tests know, by its shape.
struct Known {
    name: &'static str,
    shape: String,
    inlined: bool,
}

impl Known {
    /// The functions, as they are in this program, which refers to all of them, and the copies that are written down.
    fn all() -> Result<Vec<Self>> {
        let this = env::current_exe().context("the task cannot find its own program")?;
        let (image, sequences, _) = read(&this).with_context(|| format!("cannot read {}", this.display()))?;
        let mut all = Vec::new();
        for entry in SEQUENCES {
            let path = format!("{}{}", entry.name.len(), entry.name);
            let found = sequences.iter().find(|sequence| sequence.function.contains(&path));
            let shape = found.and_then(|sequence| shape_of(&image, sequence));
            let shape = shape.ok_or_else(|| anyhow!("{} has no sequence {}", this.display(), entry.name))?;
            all.push(Self { name: entry.name, shape, inlined: false });
        }
        all.extend(shape::written(INLINED).into_iter().map(|(name, shape)| Self { name, shape, inlined: true }));
        Ok(all)
    }

    fn declared(&self) -> Declared {
        let entry = SEQUENCES.iter().find(|entry| entry.name == self.name);
        entry.map_or(Declared::default(), |entry| Declared {
            private_stores: entry.private_stores,
            has_loop: entry.has_loop,
            is_locked: entry.is_locked,
        })
    }
}

/// Builds the libraries that have sequences, and programs that inline them, and looks at every one.
pub fn check(workspace: &Workspace) -> Result<()> {
    let known = Known::all()?;
    let mut found = Vec::new();
    for file in built(workspace)? {
        let (image, sequences, listed) = read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if sequences.is_empty() {
            found.push(format!("{} has no sequences: the section __rseq_cs is missing", file.display()));
        }
        let mut inlined = BTreeMap::<&str, usize>::new();
        for sequence in &sequences {
            let mut violations = match shape_of(&image, sequence) {
                None => vec!["its range or its arming is no text".to_owned()],
                Some(shape) => match known.iter().find(|known| shape::is_copy(&shape, &known.shape)) {
                    None => {
                        vec![format!("the tests of larder-percpu know no sequence of these instructions:\n{shape}")]
                    }
                    Some(known) => {
                        *inlined.entry(known.name).or_default() += usize::from(known.inlined);
                        violations(&image, sequence, known.declared())
                    }
                },
            };
            if !listed.contains(&sequence.descriptor) {
                violations.push("it is not in __rseq_cs_ptr_array, where debuggers look for it".to_owned());
            }
            let (name, function, start) = (file.display(), &sequence.function, sequence.start);
            found.extend(violations.into_iter().map(|what| format!("{name}: in {function} at {start:#x}: {what}")));
        }
        inlined.retain(|_, n| *n > 0);
        let copies: Vec<_> = inlined.into_iter().map(|(name, n)| format!("{n} {name}")).collect();
        let copies = if copies.is_empty() { "none".to_owned() } else { copies.join(", ") };
        println!("{}: {} sequences; with a shape for inlining: {copies}", file.display(), sequences.len());
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!("{}", found.join("\n"))
}

/// Everything that is built with sequences in it: the doors, and programs in Rust and C that inline them.
fn built(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if workspace.has("larder-cs") {
        let library = stage::build_critical_sections(workspace)?;
        let programs = critical_sections::compiled(workspace, &library)?;
        if programs.is_empty() {
            println!("SKIPPED the C programs: there is no C compiler (apt-get install gcc libc6-dev)");
        }
        files.push(library);
        files.extend(programs);
    }
    if workspace.has("larder-gc") {
        files.push(stage::build_library(workspace)?);
    }
    if workspace.has("larder-percpu") {
        run(workspace.cargo().args(["build", "--release", "--package", "larder-percpu", "--examples"]))?;
        let examples = workspace.target().join("release/examples");
        files.extend(["counter", "free_list", "statistics"].map(|name| examples.join(name)));
    }
    Ok(files)
}

/// The sequence's instructions without the names of registers.
fn shape_of(image: &Image, sequence: &Sequence) -> Option<String> {
    let mut at = sequence.abort;
    let again = loop {
        let i = image.instruction(at)?;
        match i.flow_control() {
            FlowControl::UnconditionalBranch => break i.near_branch_target(),
            FlowControl::Next => at = i.next_ip(),
            _ => return None,
        }
    };
    let between = |start: u64, end: u64| {
        let mut all = Vec::new();
        let mut at = start;
        while at < end {
            let i = image.instruction(at)?;
            at = i.next_ip();
            all.push(i);
        }
        (!all.is_empty()).then_some(all)
    };
    let range = between(sequence.start, sequence.start.wrapping_add(sequence.length))?;
    Some(shape::shape(&between(again, sequence.start)?, &range))
}

/// The memory of a library or program, its sequences, and the descriptors that it lists for debuggers.
fn read(library: &Path) -> Result<(Image, Vec<Sequence>, Vec<u64>)> {
    let bytes = fs::read(library)?;
    let file = object::File::parse(&*bytes)?;
    let mut image = Image::default();
    for segment in file.segments() {
        image.segments.push((segment.address(), segment.data()?.to_vec()));
    }
    let Some(section) = file.section_by_name("__rseq_cs") else { return Ok((image, vec![], vec![])) };
    // Addresses are filled in by the loader; the file has them as addends.
    let relocations: Vec<(u64, u64)> = file
        .dynamic_relocations()
        .map(|relocations| relocations.map(|(at, relocation)| (at, relocation.addend() as u64)).collect())
        .unwrap_or_default();
    let word = |at: u64| -> Result<u64> {
        if let Some((_, addend)) = relocations.iter().find(|(place, _)| *place == at) {
            return Ok(*addend);
        }
        let bytes = image.bytes(at, 8).ok_or_else(|| anyhow!("{at:#x} is not mapped"))?;
        Ok(u64::from_le_bytes(bytes.try_into().context("eight bytes")?))
    };
    let functions: Vec<(u64, u64, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
        .collect();
    let mut sequences = Vec::new();
    for descriptor in (section.address()..section.address() + section.size()).step_by(DESCRIPTOR) {
        let start = word(descriptor + 8)?;
        let function = functions.iter().find(|(at, size, _)| (*at..at + size).contains(&start));
        sequences.push(Sequence {
            function: function.map_or("?".to_owned(), |(_, _, name)| name.clone()),
            version_and_flags: word(descriptor)?,
            descriptor,
            start,
            length: word(descriptor + 16)?,
            abort: word(descriptor + 24)?,
        });
    }
    let list = file.section_by_name("__rseq_cs_ptr_array");
    let places = list.into_iter().flat_map(|list| (list.address()..list.address() + list.size()).step_by(8));
    let listed = places.map(&word).collect::<Result<Vec<u64>>>()?;
    Ok((image, sequences, listed))
}

/// Whether the instruction writes memory.
fn writes_memory(i: &Instruction) -> bool {
    let writes = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    InstructionInfoFactory::new().info(i).used_memory().iter().any(|memory| writes(memory.access()))
}

/// Everything that is wrong with a sequence.
fn violations(image: &Image, sequence: &Sequence, declared: Declared) -> Vec<String> {
    let mut found = Vec::new();
    let (start, end) = (sequence.start, sequence.start.wrapping_add(sequence.length));
    if sequence.version_and_flags != 0 {
        found.push("version or flags are not 0: the kernel kills the thread".to_owned());
    }
    if (start..end).contains(&sequence.abort) {
        found.push("the abort address is inside the range: the kernel kills the thread".to_owned());
    }
    let signature = sequence.abort.checked_sub(4).and_then(|at| image.bytes(at, 4));
    if signature != Some(&SIGNATURE.to_le_bytes()) {
        found.push("no signature before the abort address: the kernel kills the thread".to_owned());
    }

    let mut body = Vec::new();
    let mut at = start;
    while at < end {
        let Some(i) = image.instruction(at) else {
            found.push(format!("{at:#x} is no instruction"));
            return found;
        };
        body.push(i);
        at = i.next_ip();
    }
    if at != end || body.is_empty() {
        found.push("the range does not end with an instruction".to_owned());
    }
    let mut stores = 0;
    for (n, i) in body.iter().enumerate() {
        let is_last = n + 1 == body.len();
        let place = i.ip() - start;
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let target = i.near_branch_target();
                if (start..i.ip() + 1).contains(&target) && !declared.has_loop {
                    found.push(format!("a loop at +{place:#x} that the table does not declare"));
                }
            }
            other => found.push(format!("{other:?} at +{place:#x}")),
        }
        if matches!(i.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int) {
            found.push(format!("a system call at +{place:#x}"));
        }
        if i.is_stack_instruction() || (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) && uses_stack(i) {
            found.push(format!("stack use at +{place:#x}"));
        }
        if i.has_lock_prefix() && !(is_last && declared.is_locked) {
            found.push(format!("a lock prefix at +{place:#x}"));
        }
        if writes_memory(i) != is_last {
            if is_last {
                found.push("the last instruction stores nothing: the commit is not last".to_owned());
            } else {
                stores += 1;
            }
        }
    }
    if stores != declared.private_stores {
        let table = declared.private_stores;
        found.push(format!("{stores} stores before the last instruction; the table declares {table} private ones"));
    }
    if !body.iter().any(|i| i.memory_segment() == Register::FS && !writes_memory(i)) {
        found.push("the index is not read in the range".to_owned());
    }
    found.extend(arming(image, sequence));
    found
}

/// By the stack pointer: without frame pointers `rbp` is a register like any other, and operands of inlined sequences are
/// registers.
fn uses_stack(i: &Instruction) -> bool {
    i.memory_base() == Register::RSP
}

/// The abort handler leads back to where the sequence is armed, with its own descriptor, right before the range.
fn arming(image: &Image, sequence: &Sequence) -> Option<String> {
    let mut at = sequence.abort;
    // It may count before it goes back.
    let again = loop {
        let i = image.instruction(at)?;
        match i.flow_control() {
            FlowControl::UnconditionalBranch => break i.near_branch_target(),
            FlowControl::Next if at - sequence.abort < 32 => at = i.next_ip(),
            _ => return Some("the abort handler does not start over".to_owned()),
        }
    };
    if again >= sequence.start || sequence.start - again > 64 {
        return Some("the abort handler does not arm again".to_owned());
    }
    let (mut at, mut last, mut names_descriptor) = (again, None, false);
    while at < sequence.start {
        let i = image.instruction(at)?;
        names_descriptor |= i.mnemonic() == Mnemonic::Lea
            && i.is_ip_rel_memory_operand()
            && i.ip_rel_memory_address() == sequence.descriptor;
        if i.memory_segment() == Register::FS && !writes_memory(&i) {
            return Some("the index is read before the sequence is armed".to_owned());
        }
        at = i.next_ip();
        last = Some(i);
    }
    let arms = last.is_some_and(|i| {
        i.mnemonic() == Mnemonic::Mov && i.memory_segment() == Register::FS && i.op0_kind() == OpKind::Memory
    });
    if !arms || at != sequence.start {
        return Some("the store that arms is not right before the range".to_owned());
    }
    (!names_descriptor).then(|| "it arms with another descriptor".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x1000;
    const FAILURE: u64 = 0x2000;

    /// lea rax, [rip + descriptor]; mov fs:[r10], rax | mov r10d, fs:[r10]; cmp r10d, [rdi]; jae out; mov rax, [r10]; inc rax;
    /// mov [r10], rax | ret
    fn good() -> (Image, Sequence) {
        let mut code = vec![0x48, 0x8d, 0x05];
        code.extend((0x3000i32 - 0x1007).to_le_bytes());
        code.extend([0x64, 0x49, 0x89, 0x02]);
        let start = code.len() as u64;
        code.extend([0x64, 0x45, 0x8b, 0x12]);
        code.extend([0x44, 0x3b, 0x17]);
        code.extend([0x0f, 0x83]);
        code.extend((FAILURE as i32 + 0x40 - (CODE as i32 + code.len() as i32 + 4)).to_le_bytes());
        code.extend([0x49, 0x8b, 0x02]);
        code.extend([0x48, 0xff, 0xc0]);
        code.extend([0x49, 0x89, 0x02]);
        let length = code.len() as u64 - start;
        code.push(0xc3);
        code.extend([0x90; 16]);
        let mut failure = vec![0x0f, 0xb9, 0x3d];
        failure.extend(SIGNATURE.to_le_bytes());
        let abort = FAILURE + failure.len() as u64;
        failure.push(0xe9);
        failure.extend((CODE as i32 - (FAILURE as i32 + failure.len() as i32 + 4)).to_le_bytes());
        failure.extend([0xc3; 0x60]);
        let sequence = Sequence {
            function: "test".into(),
            version_and_flags: 0,
            descriptor: 0x3000,
            start: CODE + start,
            length,
            abort,
        };
        (Image { segments: vec![(CODE, code), (FAILURE, failure)] }, sequence)
    }

    fn with(change: impl FnOnce(&mut Image, &mut Sequence)) -> Vec<String> {
        let (mut image, mut sequence) = good();
        change(&mut image, &mut sequence);
        violations(&image, &sequence, Declared::default())
    }

    /// Writes bytes at an offset of the range.
    fn patch(image: &mut Image, sequence: &Sequence, offset: u64, bytes: &[u8]) {
        let at = (sequence.start - CODE + offset) as usize;
        image.segments[0].1[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn a_good_sequence_is_good() {
        assert_eq!(with(|_, _| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named() {
        let one = |word: &str, change: &dyn Fn(&mut Image, &mut Sequence)| {
            let found = with(change);
            assert!(found.iter().any(|what| what.contains(word)), "{word}: {found:?}");
        };
        one("the abort address is inside", &|_, s| s.abort = s.start + 4);
        one("no signature", &|_, s| s.abort += 1);
        one("flags", &|_, s| s.version_and_flags = 1 << 32);
        one("does not end with an instruction", &|_, s| s.length -= 1);
        // One instruction short: what is last then stores nothing. One long: `ret` is in the range.
        one("the commit is not last", &|_, s| s.length -= 3);
        one("Return", &|_, s| s.length += 1);
        // The places of `mov rax, [r10]` and `inc rax` are at 13 and 16.
        one("1 stores before", &|i, s| patch(i, s, 13, &[0x49, 0x89, 0x02]));
        one("system call", &|i, s| patch(i, s, 16, &[0x0f, 0x05, 0x90]));
        one("stack use", &|i, s| patch(i, s, 16, &[0x50, 0x58, 0x90]));
        one("IndirectCall", &|i, s| patch(i, s, 16, &[0xff, 0xd0, 0x90]));
        one("a loop", &|i, s| patch(i, s, 16, &[0x72, 0xfb, 0x90]));
        one("a lock prefix", &|i, s| patch(i, s, 13, &[0xf0, 0x49, 0xff, 0x02, 0x90, 0x90]));
        one("the index is not read", &|i, s| patch(i, s, 0, &[0x90, 0x45, 0x8b, 0x12]));
        one("another descriptor", &|_, s| s.descriptor += 32);
        one("does not arm again", &|i, s| {
            let to_start = s.start as i32 - (s.abort as i32 + 5);
            i.segments[1].1[8..12].copy_from_slice(&to_start.to_le_bytes());
        });
        one("not right before", &|i, _| i.segments[0].1[7..11].copy_from_slice(&[0x90; 4]));
    }

    #[test]
    fn what_the_table_declares_is_allowed() {
        let (mut image, sequence) = good();
        patch(&mut image, &sequence, 13, &[0x49, 0x89, 0x02]);
        let declared = Declared { private_stores: 1, ..Declared::default() };
        assert_eq!(violations(&image, &sequence, declared), Vec::<String>::new());
    }
}
