//! A breakpoint at every instruction of every sequence; its handler does the most hostile things to the same structure, as a
//! signal handler could, and everything is counted: what was put in and what came out agree to the last piece.
//!
//! Inside the range the kernel must abort the sequence, once; the first instruction behind the range must not abort.

// SAFETY, of every block that says nothing else: offsets are those of `at`, inside the area; what is in lists and regions lies
// in MEMORY; tickets are this thread's, and their words are read as words.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_percpu::areas::{By, Core, Options};
use larder_percpu::sequence::Descriptor;
use larder_percpu::sequence::frame::HEADER;
use larder_percpu::sequence::inlined::{Hold, NotStored};
use larder_percpu::sequence::level::{self, REFUSED};
use larder_percpu::sequence::table::{Entry, SEQUENCES};
use larder_percpu::sequence::transaction::{INTERFERED, MISMATCH};
use larder_percpu::{Level, Mode};

#[path = "copies/mod.rs"]
mod copies;
#[path = "../../larder-testkit/tests/trap/mod.rs"]
mod trap;

/// Offsets of the words in the area.
mod at {
    pub const COUNT: usize = 0;
    pub const LIST: usize = 8;
    pub const EXCHANGED: usize = 16;
    pub const COMPARED: usize = 24;
    pub const GUARD: usize = 32;
    pub const STORED: usize = 40;
    pub const STORED_SMALL: usize = 48;
    pub const COMPARED_SMALL: usize = 52;
    pub const COMPARED_TXN: usize = 56;
    pub const PAIR: usize = 64;
    pub const PAIR_TXN: usize = 80;
    pub const REGION: usize = 96;
    pub const STACK: usize = 112;
    pub const AREA: usize = 256;
}

/// What the areas hold, by its size.
type Content = [u8; at::AREA];

const CAPACITY: usize = 8;
const PIECE: usize = 16;

static CORE: Core = Core::new(at::AREA, Options::new(By::Cpu));
static SHARED: Core = Core::new(at::AREA, Options::new(By::Level(Level::Package)));
/// Text is patched for the whole process, so one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Default)]
struct Accounts {
    /// Numbers that were put somewhere, and those that came out: the same in the end.
    put: Vec<usize>,
    got: Vec<usize>,
    /// Additions that were made, and found.
    added: u64,
    found: u64,
    next: usize,
}

static ACCOUNTS: Mutex<Accounts> = Mutex::new(Accounts { put: vec![], got: vec![], added: 0, found: 0, next: 0 });

fn accounts<R>(f: impl FnOnce(&mut Accounts) -> R) -> R {
    f(&mut ACCOUNTS.lock().unwrap())
}

/// Memory for nodes and pieces: everything that a sequence may read or write lies in it.
static MEMORY: AtomicUsize = AtomicUsize::new(0);
const PLACES: usize = 1 << 20;

fn fresh(places: usize) -> usize {
    let n = accounts(|a| {
        a.next += places;
        a.next - places
    });
    MEMORY.load(Ordering::Relaxed) + n % (PLACES - 64) * PIECE
}

fn put(item: usize) {
    accounts(|a| a.put.push(item));
}

fn got(item: usize) {
    if item != 0 {
        accounts(|a| a.got.push(item));
    }
}

fn added(n: u64) {
    accounts(|a| a.added += n);
}

unsafe fn word(content: *mut u8, offset: usize) -> *mut u64 {
    // SAFETY: the caller passes a content of `at::AREA` bytes.
    unsafe { content.add(offset).cast() }
}

/// Reads a word of the current index's area.
fn read(core: &Core, offset: usize) -> u64 {
    let index = core.current_index().unwrap_or(core.areas() - 2);
    // SAFETY: inside the area.
    unsafe { word(core.content(index), offset).read_volatile() }
}

// The operations, each by the sequence of its name.

fn add() {
    // SAFETY: here and below: the offsets are inside the area, and what is in lists and regions is in MEMORY.
    unsafe { CORE.add(at::COUNT, 1) };
    added(1);
}

fn exchange() {
    let new = fresh(1);
    put(new);
    got(unsafe { CORE.exchange(at::EXCHANGED, new as u64) } as usize);
}

fn compare_store() {
    let seen = read(&CORE, at::COMPARED);
    if unsafe { CORE.compare_store(at::COMPARED, seen, seen + 1) } == 0 {
        added(1);
    }
}

fn compare_two_store() {
    let (seen, guard) = (read(&CORE, at::COMPARED), read(&CORE, at::GUARD));
    if unsafe { CORE.compare_two_store(at::COMPARED, seen, seen + 1, at::GUARD, guard) } == 0 {
        added(1);
    }
}

fn compare_store_pair() {
    let seen = [read(&CORE, at::PAIR), read(&CORE, at::PAIR + 8)];
    if unsafe { CORE.compare_store_pair(at::PAIR, seen, seen.map(|w| w + 1)) } == 0 {
        added(2);
    }
}

fn list_push() {
    let nodes = [fresh(1), fresh(1)];
    nodes.iter().for_each(|&node| put(node));
    // SAFETY: both nodes are in MEMORY and nobody else's.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<usize>(nodes[0]).write(nodes[1]);
        CORE.list_push(at::LIST, nodes[0], nodes[1]);
    }
}

fn list_pop() {
    got(unsafe { CORE.list_pop(at::LIST) });
}

fn stack_push() {
    let item = fresh(1);
    if unsafe { CORE.stack_push(at::STACK, item, CAPACITY) } {
        put(item);
    }
}

fn stack_pop() {
    got(unsafe { CORE.stack_pop(at::STACK) });
}

fn stack_push_many() {
    let items = [fresh(1), fresh(1), fresh(1)];
    let n = unsafe { CORE.stack_push_many(at::STACK, &items, CAPACITY) };
    items[..n].iter().for_each(|&item| put(item));
}

fn stack_pop_many() {
    let mut items = [0; 3];
    let n = unsafe { CORE.stack_pop_many(at::STACK, &mut items) };
    items[..n].iter().for_each(|&item| {
        assert_ne!(item, 0);
        got(item);
    });
}

/// Replaces the region by a new one.
fn install() {
    let first = fresh(8);
    let seen = [read(&CORE, at::REGION), read(&CORE, at::REGION + 8)];
    let new = [first as u64, (first + 4 * PIECE) as u64];
    if unsafe { CORE.compare_store_pair(at::REGION, seen, new) } == 0 {
        (0..4).for_each(|n| put(first + n * PIECE));
        pieces(seen);
    }
}

fn pieces(region: [u64; 2]) {
    (region[0]..region[1]).step_by(PIECE).for_each(|piece| got(piece as usize));
}

fn bump() {
    got(unsafe { CORE.bump(at::REGION, PIECE) });
}

fn bump_header() {
    let piece = unsafe { CORE.bump_header(at::REGION, PIECE, 77) };
    if piece != 0 {
        // SAFETY: the piece is in MEMORY.
        assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u64>(piece).read() }, 77);
    }
    got(piece);
}

/// A transaction that adds one by the given commit.
fn transact(commit: impl Fn(larder_percpu::areas::Ticket, *mut u8) -> (u32, u64)) {
    let ticket = CORE.begin();
    let (status, n) = commit(ticket, CORE.content(ticket.index as usize));
    assert_ne!(status, MISMATCH, "only transactions write these words, and none began since");
    if status != INTERFERED {
        added(n);
    }
}

fn commit_store_64() {
    transact(|ticket, c| unsafe {
        let w = word(c, at::STORED);
        (CORE.store_64(ticket, w, w.read_volatile() + 1), 1)
    });
}

fn commit_store_32() {
    transact(|ticket, c| unsafe {
        let w = word(c, at::STORED_SMALL).cast::<u32>();
        (CORE.store_32(ticket, w, w.read_volatile() + 1), 1)
    });
}

fn commit_compare_32() {
    transact(|ticket, c| unsafe {
        let w = c.add(at::COMPARED_SMALL).cast::<u32>();
        let seen = w.read_volatile();
        (CORE.compare_32(ticket, w, seen, seen + 1), 1)
    });
}

fn commit_compare_64() {
    transact(|ticket, c| unsafe {
        let w = word(c, at::COMPARED_TXN);
        let seen = w.read_volatile();
        (CORE.compare_64(ticket, w, seen, seen + 1), 1)
    });
}

fn commit_pair() {
    transact(|ticket, c| unsafe {
        let w = word(c, at::PAIR_TXN);
        let seen = [w.read_volatile(), w.add(1).read_volatile()];
        (CORE.compare_pair(ticket, w, seen, seen.map(|n| n + 1)), 2)
    });
}

/// Two commits in a chain.
fn chain() {
    let ticket = CORE.begin();
    let c = CORE.content(ticket.index as usize);
    for offset in [at::STORED, at::COMPARED_TXN] {
        // SAFETY: as in `add`.
        let status = unsafe {
            let w = word(c, offset);
            CORE.store_64(ticket, w, w.read_volatile() + 1)
        };
        if status != 0 {
            return;
        }
        added(1);
    }
}

fn level_add() {
    unsafe { SHARED.level_add(at::COUNT, 1) };
    added(1);
}

fn level_compare_store() {
    let seen = read(&SHARED, at::COMPARED);
    if unsafe { SHARED.level_compare_store(at::COMPARED, seen, seen + 1) } == 0 {
        added(1);
    }
}

fn level_compare_store_pair() {
    let first = fresh(8);
    let seen = [read(&SHARED, at::REGION), read(&SHARED, at::REGION + 8)];
    let new = [first as u64, (first + 4 * PIECE) as u64];
    if unsafe { SHARED.level_compare_store_pair(at::REGION, seen, new) } == 0 {
        (0..4).for_each(|n| put(first + n * PIECE));
        pieces(seen);
    }
}

fn level_bump() {
    got(unsafe { SHARED.level_bump(at::REGION, PIECE) });
}

/// Every operation shares one guess, so it is wrong most of the time.
static GUESS: AtomicUsize = AtomicUsize::new(1);

fn level_bump_guessed() {
    match unsafe { level::level_bump_guessed(SHARED.frame(), HEADER + at::REGION, PIECE, GUESS.as_ptr()) } {
        REFUSED => {}
        at => got(at),
    }
}

/// Every filling of the test's has memory of its own, so a frontier never comes back.
fn level_bump_numbered() {
    match unsafe { level::level_bump_numbered(SHARED.frame(), HEADER + at::REGION, PIECE) } {
        REFUSED => {}
        at => got(at),
    }
}

/// Takes over every area and empties it.
fn take_over() {
    for core in [&CORE, &SHARED] {
        for index in 0..core.areas() {
            let done = core.take_over(index, |c| {
                // SAFETY: the area is this function's alone.
                unsafe { empty(c) };
            });
            done.expect("nobody holds it");
        }
    }
}

unsafe fn empty(c: *mut u8) {
    // SAFETY: the caller has the area for itself.
    unsafe {
        for offset in [at::COUNT, at::COMPARED, at::STORED, at::COMPARED_TXN] {
            let n = word(c, offset).replace(0);
            accounts(|a| a.found += n);
        }
        for offset in [at::STORED_SMALL, at::COMPARED_SMALL] {
            let n = c.add(offset).cast::<u32>().replace(0);
            accounts(|a| a.found += u64::from(n));
        }
        for offset in [at::PAIR, at::PAIR_TXN] {
            let [a, b] = c.add(offset).cast::<[u64; 2]>().replace([0; 2]);
            assert_eq!(a, b, "both words of a pair change together");
            accounts(|acc| acc.found += a + b);
        }
        got(word(c, at::EXCHANGED).replace(0) as usize);
        let mut node = word(c, at::LIST).replace(0) as usize;
        while node != 0 {
            got(node);
            node = std::ptr::with_exposed_provenance::<usize>(node).read();
        }
        pieces(c.add(at::REGION).cast::<[u64; 2]>().replace([0; 2]));
        let count = word(c, at::STACK).replace(0) as usize;
        (1..=count).for_each(|n| got(word(c, at::STACK + n * 8).read() as usize));
    }
}

fn nothing() {}

/// Changes the word that `compare_two_store` looks at beside.
fn change_guard() {
    let seen = read(&CORE, at::GUARD);
    // SAFETY: inside the area.
    unsafe { CORE.compare_store(at::GUARD, seen, seen + 1) };
}

fn membarrier() {
    assert!(larder_sys::membarrier::abort_sequences());
}

/// Goes to another CPU, where there is one.
fn migrate() {
    let now = larder_sys::cpus::current();
    (0..64).find(|&cpu| cpu != now && pin(cpu));
}

/// Goes elsewhere, works there, and comes back.
fn away_and_back() {
    let before = larder_sys::cpus::current();
    migrate();
    everything();
    assert!(pin(before));
}

fn everything() {
    for operation in [
        add,
        exchange,
        compare_store,
        compare_two_store,
        compare_store_pair,
        list_push,
        list_pop,
        install,
        bump,
        stack_push,
        stack_pop_many,
        commit_store_64,
        commit_store_32,
        commit_compare_32,
        commit_compare_64,
        commit_pair,
        level_add,
        level_compare_store,
        level_compare_store_pair,
        level_bump,
        level_bump_numbered,
        level_bump_guessed,
    ] {
        operation();
    }
}

fn pin(cpu: usize) -> bool {
    // SAFETY: the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

type Named = (&'static str, fn());

const HOSTILE: [Named; 9] = [
    ("nothing", nothing),
    ("everything", everything),
    ("take over", take_over),
    ("migrate", migrate),
    ("away and back", away_and_back),
    ("guard", change_guard),
    ("membarrier", membarrier),
    ("chain", chain),
    ("bump header", bump_header),
];

/// For each sequence, the operation that uses it.
const SUBJECTS: [Named; 25] = [
    ("begin", chain),
    ("commit_store_32", commit_store_32),
    ("commit_store_64", commit_store_64),
    ("commit_compare_32", commit_compare_32),
    ("commit_compare_64", commit_compare_64),
    ("commit_pair", commit_pair),
    ("add", add),
    ("exchange", exchange),
    ("compare_store", compare_store),
    ("compare_two_store", compare_two_store),
    ("compare_store_pair", compare_store_pair),
    ("bump", bump),
    ("bump_header", bump_header),
    ("list_pop", list_pop),
    ("list_push", list_push),
    ("stack_pop", stack_pop),
    ("stack_push", stack_push),
    ("stack_pop_many", stack_pop_many),
    ("stack_push_many", stack_push_many),
    ("level_bump", level_bump),
    ("level_bump_numbered", level_bump_numbered),
    ("level_bump_guessed", level_bump_guessed),
    ("level_add", level_add),
    ("level_compare_store", level_compare_store),
    ("level_compare_store_pair", level_compare_store_pair),
];

/// The descriptor that the function arms with: the last `lea` before the store to `rseq_cs` names it.
fn descriptor(function: &[iced_x86::Instruction]) -> &'static Descriptor {
    let stores = |i: &iced_x86::Instruction| {
        i.memory_segment() == iced_x86::Register::FS && i.op0_kind() == iced_x86::OpKind::Memory
    };
    let armed = function.iter().position(stores).expect("a sequence arms");
    let is_lea = |i: &&iced_x86::Instruction| i.mnemonic() == iced_x86::Mnemonic::Lea && i.is_ip_rel_memory_operand();
    let arming = function[..armed].iter().rev().find(is_lea);
    let at = arming.expect("a sequence arms").ip_rel_memory_address() as usize;
    // SAFETY: the descriptor is a constant of the program.
    unsafe { &*std::ptr::with_exposed_provenance(at) }
}

/// Calls the operation with breakpoints, empties everything, and compares.
fn experiment(operation: fn(), plan: &[usize], hostile: fn()) -> Result<trap::Trapped, String> {
    let home = larder_sys::cpus::current();
    // Something of everything is there, and a little more than one.
    for _ in 0..2 {
        list_push();
        stack_push_many();
        exchange();
        add();
    }
    install();
    level_compare_store_pair();
    let ((), trapped) = trap::with_breakpoints(plan, hostile, operation);
    assert!(pin(home));
    take_over();
    accounts(|a| {
        let (mut put, mut got) = (std::mem::take(&mut a.put), std::mem::take(&mut a.got));
        put.sort_unstable();
        got.sort_unstable();
        let (added, found) = (std::mem::take(&mut a.added), std::mem::take(&mut a.found));
        if put != got {
            return Err(format!("{} put, {} got", put.len(), got.len()));
        }
        if added != found {
            return Err(format!("{added} added, {found} found"));
        }
        Ok(trapped)
    })
}

fn set_up() -> bool {
    CORE.set_up().unwrap();
    SHARED.set_up().unwrap();
    if !matches!(CORE.mode(), Mode::Cpus) {
        eprintln!("no sequences here: nothing to interrupt");
        return false;
    }
    trap::install();
    if MEMORY.load(Ordering::Relaxed) == 0 {
        let memory = larder_sys::memory::map_lazy(larder_units::Bytes(PLACES * PIECE)).unwrap();
        MEMORY.store(memory.as_ptr().expose_provenance(), Ordering::Relaxed);
    }
    assert!((0..64).any(pin));
    true
}

// The inlined copies, each in a function of its own here.

#[inline(never)]
fn add_inlined() {
    unsafe { CORE.add_inlined::<Content>(at::COUNT, 1) };
}

#[inline(never)]
fn list_pop_inlined() -> usize {
    unsafe { CORE.list_pop_inlined::<Content>(at::LIST) }
}

#[inline(never)]
fn list_push_inlined(node: usize) {
    unsafe { CORE.list_push_inlined::<Content>(at::LIST, node, node) };
}

#[inline(never)]
fn level_bump_inlined() -> usize {
    unsafe { SHARED.level_bump_inlined::<Content>(at::REGION, PIECE, GUESS.as_ptr()) }
}

/// As `transact`, by a commit that is inlined and adds `n`.
fn transact_inlined(commit: fn(Hold) -> Result<(), NotStored>, n: u64) {
    commit_to(begin_inlined(), commit, n);
}

fn commit_to(hold: Hold, commit: fn(Hold) -> Result<(), NotStored>, n: u64) {
    let stored = commit(hold);
    assert_ne!(stored, Err(NotStored::Mismatch), "only transactions write these words, and none began since");
    added(if stored.is_ok() { n } else { 0 });
}

#[inline(never)]
fn begin_inlined() -> Hold {
    unsafe { CORE.begin_inlined::<Content>() }
}

#[inline(never)]
fn store_32_inlined(hold: Hold) -> Result<(), NotStored> {
    let w = unsafe { word(hold.content, at::STORED_SMALL) }.cast::<u32>();
    let stored = unsafe { CORE.store_32_inlined(hold, w, w.read_volatile() + 1) };
    if stored { Ok(()) } else { Err(NotStored::Interfered) }
}

#[inline(never)]
fn store_64_inlined(hold: Hold) -> Result<(), NotStored> {
    let w = unsafe { word(hold.content, at::STORED) };
    let stored = unsafe { CORE.store_64_inlined(hold, w, w.read_volatile() + 1) };
    if stored { Ok(()) } else { Err(NotStored::Interfered) }
}

#[inline(never)]
fn compare_32_inlined(hold: Hold) -> Result<(), NotStored> {
    let w = unsafe { hold.content.add(at::COMPARED_SMALL) }.cast::<u32>();
    let seen = unsafe { w.read_volatile() };
    unsafe { CORE.compare_32_inlined(hold, w, seen, seen + 1) }
}

#[inline(never)]
fn compare_64_inlined(hold: Hold) -> Result<(), NotStored> {
    let w = unsafe { word(hold.content, at::COMPARED_TXN) };
    let seen = unsafe { w.read_volatile() };
    unsafe { CORE.compare_64_inlined(hold, w, seen, seen + 1) }
}

/// Adds one to both words, so that the sum grows by two.
#[inline(never)]
fn compare_pair_inlined(hold: Hold) -> Result<(), NotStored> {
    let w = unsafe { word(hold.content, at::PAIR_TXN) };
    let seen = unsafe { [w.read_volatile(), w.add(1).read_volatile()] };
    unsafe { CORE.compare_pair_inlined(hold, w, seen, seen.map(|n| n + 1)) }
}

/// Name, address of the function, and the operation that uses it and keeps the accounts.
type Copied = (&'static str, fn() -> usize, fn());

/// As `begin_inlined`, by the text of C's header.
fn begin_in_c() -> Hold {
    let frame = CORE.frame();
    let begun = unsafe { copies::begin_in_c(frame) };
    if begun.token == 0 { begin_inlined() } else { copies::hold(frame, begun.index, begun.token) }
}

const INLINED: [Copied; 11] = [
    (
        "add, inlined",
        || add_inlined as *const () as usize,
        || {
            add_inlined();
            added(1);
        },
    ),
    ("list_pop, inlined", || list_pop_inlined as *const () as usize, || got(list_pop_inlined())),
    (
        "list_push, inlined",
        || list_push_inlined as *const () as usize,
        || {
            let node = fresh(1);
            put(node);
            list_push_inlined(node);
        },
    ),
    ("level_bump_guessed, inlined", || level_bump_inlined as *const () as usize, || got(level_bump_inlined())),
    ("begin, inlined", || begin_inlined as *const () as usize, || transact_inlined(store_64_inlined, 1)),
    (
        "begin, inlined in C",
        || copies::begin_in_c as *const () as usize,
        || commit_to(begin_in_c(), store_64_inlined, 1),
    ),
    ("store_32, inlined", || store_32_inlined as *const () as usize, || transact_inlined(store_32_inlined, 1)),
    ("store_64, inlined", || store_64_inlined as *const () as usize, || transact_inlined(store_64_inlined, 1)),
    ("compare_32, inlined", || compare_32_inlined as *const () as usize, || transact_inlined(compare_32_inlined, 1)),
    ("compare_64, inlined", || compare_64_inlined as *const () as usize, || transact_inlined(compare_64_inlined, 1)),
    (
        "compare_pair, inlined",
        || compare_pair_inlined as *const () as usize,
        || transact_inlined(compare_pair_inlined, 2),
    ),
];

/// Every sequence: its name, its function, and the operation that uses it.
fn subjects() -> impl Iterator<Item = (&'static str, usize, fn())> {
    let called = SUBJECTS.into_iter().map(|(name, operation)| (name, (entry(name).function)(), operation));
    called.chain(INLINED.into_iter().map(|(name, function, operation)| (name, function(), operation)))
}

fn entry(name: &str) -> &'static Entry {
    SEQUENCES.iter().find(|e| e.name == name).expect("the table has it")
}

#[test]
fn every_sequence_has_a_subject() {
    let mut named: Vec<_> = SUBJECTS.iter().map(|s| s.0).collect();
    let mut all: Vec<_> = SEQUENCES.iter().map(|e| e.name).collect();
    named.sort_unstable();
    all.sort_unstable();
    assert_eq!(named, all);
}

#[test]
fn exactly_the_range_aborts() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !set_up() {
        return;
    }
    for (name, function, operation) in subjects() {
        let function = trap::instructions_of(function);
        let d = descriptor(&function);
        let (mut inside_hit, mut behind_hit) = (0, 0);
        for i in &function {
            let at = i.ip() as usize;
            let trapped = experiment(operation, &[at], nothing).unwrap_or_else(|e| panic!("{name} at {i:?}: {e}"));
            let inside = (d.start..d.start + d.length).contains(&at);
            assert_eq!(trapped.aborts, trapped.hits * usize::from(inside), "{name} at {:#x}", at - d.start);
            inside_hit += usize::from(inside) * trapped.hits;
            behind_hit += usize::from(at == d.start + d.length) * trapped.hits;
        }
        assert!(inside_hit >= 7, "{name}: {inside_hit} instructions of the range were met");
        assert!(behind_hit >= 1, "{name}: the first instruction behind the range was met");
    }
}

#[test]
fn nothing_is_lost_at_any_instruction() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !set_up() {
        return;
    }
    let (mut experiments, mut aborts) = (0, 0);
    for (name, function, operation) in subjects() {
        let function = trap::instructions_of(function);
        for i in &function {
            for (what, hostile) in HOSTILE {
                // Once, and a second time wherever it is when it has started over.
                for second in function.iter().map(|j| j.ip() as usize).chain([0]) {
                    let trapped = experiment(operation, &[i.ip() as usize, second], hostile)
                        .unwrap_or_else(|e| panic!("{what} in {name} at {i:?} and {second:#x}: {e}"));
                    experiments += 1;
                    aborts += trapped.aborts;
                }
            }
        }
    }
    eprintln!("{experiments} experiments, {aborts} aborts");
    assert!(aborts > 30_000);
}
