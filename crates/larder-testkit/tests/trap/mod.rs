//! Breakpoints in the test's own code: an `int3` at a chosen instruction runs a hostile function there, on the same
//! thread, as a signal handler would.
//!
//! Where the instruction lies inside a restartable sequence, the kernel has already set the interrupted thread to
//! the sequence's abort handler when the trap's handler runs; elsewhere the handler goes back to the instruction.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::OnceLock;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use larder_percpu::sequence::{Descriptor, descriptors};
use larder_sys::loader;
use larder_units::PAGE;

/// What `int3` is made of.
const INT3: u8 = 0xCC;
/// How many breakpoints can be planned, one after the other.
const PLANNED: usize = 2;

/// Addresses of the breakpoints, in the order in which they are armed; 0 for none.
///
/// Sync: the thread that traps; no other thread runs the patched code.
static PLAN: [AtomicUsize; PLANNED] = [const { AtomicUsize::new(0) }; PLANNED];
/// The byte that the armed breakpoint stands for. Sync: as `PLAN`.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
/// The breakpoint that is armed, by its place in `PLAN`. Sync: as `PLAN`.
static ARMED: AtomicUsize = AtomicUsize::new(PLANNED);
/// Sync: as `PLAN`.
static HITS: AtomicUsize = AtomicUsize::new(0);
/// Sync: as `PLAN`.
static ABORTS: AtomicUsize = AtomicUsize::new(0);
/// Sync: as `PLAN`.
static HOSTILE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// What the breakpoints of one call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trapped {
    /// Breakpoints that were met.
    pub hits: usize,
    /// Those of them that aborted a sequence.
    pub aborts: usize,
}

fn poke(address: usize, byte: u8) {
    // SAFETY: `make_writable` was called for the page; the byte is an instruction's first, and only this thread runs it.
    unsafe { core::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(byte) };
}

fn peek(address: usize) -> u8 {
    // SAFETY: the address is inside the program's text.
    unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
}

fn arm(n: usize) {
    let address = PLAN.get(n).map_or(0, |a| a.load(Ordering::Relaxed));
    if address == 0 {
        ARMED.store(PLANNED, Ordering::Relaxed);
        return;
    }
    ARMED.store(n, Ordering::Relaxed);
    ORIGINAL.store(peek(address).into(), Ordering::Relaxed);
    poke(address, INT3);
}

fn disarm() {
    let n = ARMED.swap(PLANNED, Ordering::Relaxed);
    if let Some(address) = PLAN.get(n) {
        poke(address.load(Ordering::Relaxed), ORIGINAL.load(Ordering::Relaxed) as u8);
    }
}

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    let n = ARMED.load(Ordering::Relaxed);
    let Some(planned) = PLAN.get(n) else { larder_sys::die!("a breakpoint that nobody planned") };
    let address = planned.load(Ordering::Relaxed);
    disarm();
    // SAFETY: the kernel passes a valid context.
    let rip = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    HITS.fetch_add(1, Ordering::Relaxed);
    if *rip as usize == address + 1 {
        *rip = address as i64;
    } else {
        ABORTS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: `with_breakpoints` stores a function of this type.
    unsafe { core::mem::transmute::<*mut c_void, fn()>(HOSTILE.load(Ordering::Relaxed))() };
    arm(n + 1);
}

/// Installs the handler for traps. Other signals, and nested traps, can be delivered inside it.
pub fn install() {
    // SAFETY: the action is fully initialised.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, core::ptr::null_mut()), 0);
    }
}

/// Runs `call` with breakpoints at the given addresses: the second is armed when the first was met.
pub fn with_breakpoints<R>(plan: &[usize], hostile: fn(), call: impl FnOnce() -> R) -> (R, Trapped) {
    for (i, place) in PLAN.iter().enumerate() {
        place.store(plan.get(i).copied().unwrap_or(0), Ordering::Relaxed);
    }
    HOSTILE.store(hostile as *mut c_void, Ordering::Relaxed);
    HITS.store(0, Ordering::Relaxed);
    ABORTS.store(0, Ordering::Relaxed);
    arm(0);
    let result = call();
    disarm();
    (result, Trapped { hits: HITS.load(Ordering::Relaxed), aborts: ABORTS.load(Ordering::Relaxed) })
}

/// The instructions of the function at `start`.
pub fn instructions_of(start: usize) -> Vec<Instruction> {
    let length = length_of(start);
    // SAFETY: the function's own bytes.
    let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), length) };
    make_writable(start, start + length);
    Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE)
        .iter()
        .inspect(|i| assert!(!i.is_invalid(), "{:#x} is no instruction", i.ip()))
        .collect()
}

/// The length of the function at `start`, from the program's symbol table.
fn length_of(start: usize) -> usize {
    let found = symbols().iter().find(|s| s.address == start && s.bytes > 0);
    found.unwrap_or_else(|| panic!("the program has no symbol for its function at {start:#x}")).bytes
}

/// The address of a function whose (mangled) symbol contains both parts.
#[allow(dead_code)] // As `sequence_in`.
pub fn function_named(part: &str, other: &str) -> Option<usize> {
    symbols().iter().find(|s| s.name.contains(part) && s.name.contains(other)).map(|s| s.address)
}

/// A function or datum of the program.
struct Symbol {
    name: String,
    address: usize,
    bytes: usize,
}

/// The program's symbol table: offsets and sizes as elf(5) has them.
fn symbols() -> &'static [Symbol] {
    const SYMTAB: usize = 2;
    const SYMBOL_BYTES: usize = 24;
    static SYMBOLS: OnceLock<Vec<Symbol>> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let file = std::fs::read("/proc/self/exe").expect("a program can read itself");
        let mut base = 0;
        loader::for_each_object(|program| {
            base = program.base;
            false
        });
        let word = |at: usize, bytes: usize| {
            file[at..at + bytes].iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
        };
        let (headers, header_bytes, count) = (word(0x28, 8), word(0x3a, 2), word(0x3c, 2));
        let section = |i: usize| headers + i * header_bytes;
        let mut found = vec![];
        for table in (0..count).map(section).filter(|s| word(s + 4, 4) == SYMTAB) {
            let names = word(section(word(table + 0x28, 4)) + 0x18, 8);
            let (offset, bytes) = (word(table + 0x18, 8), word(table + 0x20, 8));
            for symbol in (offset..offset + bytes).step_by(SYMBOL_BYTES) {
                let name = &file[names + word(symbol, 4)..];
                let end = name.iter().position(|b| *b == 0).unwrap_or(0);
                found.push(Symbol {
                    name: String::from_utf8_lossy(&name[..end]).into_owned(),
                    address: base + word(symbol + 8, 8),
                    bytes: word(symbol + 16, 8),
                });
            }
        }
        found
    })
}

/// The functions that the given instructions call directly.
#[allow(dead_code)] // As `sequence_in`.
pub fn callees(of: &[Instruction]) -> Vec<usize> {
    let mut targets: Vec<usize> = of
        .iter()
        .filter(|i| i.flow_control() == FlowControl::Call && i.near_branch_target() != 0)
        .map(|i| i.near_branch_target() as usize)
        .collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

fn make_writable(from: usize, to: usize) {
    let low = from & !(PAGE.0 - 1);
    let length = to.next_multiple_of(PAGE.0) - low;
    // SAFETY: pages of the program's text, which stay readable and executable.
    let r = unsafe {
        libc::mprotect(
            core::ptr::with_exposed_provenance_mut(low),
            length,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )
    };
    assert_eq!(r, 0, "the text cannot be made writable");
}

/// The only sequence among the instructions of a function.
#[allow(dead_code)] // Not every test that uses breakpoints looks at a sequence.
pub fn sequence_in(function: &[Instruction]) -> &'static Descriptor {
    let inside = |d: &&&Descriptor| function.iter().any(|i| i.ip() as usize == d.start);
    let all: Vec<_> = descriptors().iter().filter(inside).collect();
    assert_eq!(all.len(), 1, "one sequence in the function");
    all[0]
}
