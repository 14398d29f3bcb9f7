//! A hostile operation, and a stop of the world, at every instruction of every sequence.
//!
//! The first part works on buffers of its own whose cells are only numbers, so that every cell can be accounted for: what
//! was handed out, what was given back, and what was put in must agree to the last cell. The same procedure is applied
//! to copies of the sequence with a fault each, and must find every fault. The second part does it to the heap.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::hint;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Mutex;

use larder_fixed::allocate::{allocate_below, allocate_slow};
use larder_fixed::options::Options;
use larder_fixed::{allocate, allocate_aligned, allocate_many, cycle, free, init, kind, object, stats};
use larder_percpu::Ground;
use larder_percpu::sequence::{SLAB, SLAB_SHIFT, Slot, bump, bump_own, replace, replace_own};
use larder_sys::{cpus, membarrier, memory, rseq_area};
use larder_testkit::crowd;
use larder_testkit::stop::{cycles_made, in_slow_path, start_collector, stop_here};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, in_child, pattern};
use larder_units::{BLOCK, Bytes};

mod trap;

/// Bytes of a cell in the first part.
const CELL: usize = 64;
/// Cells of a run there.
const RUN: usize = 5;

static GROUND: Ground = Ground::new();
/// Address of the slot in the slab of index 0. Sync: set before anything else.
static SLOT: AtomicUsize = AtomicUsize::new(0);

/// The accounts of one experiment. Hostile functions keep them too; the interrupted code holds no lock.
struct Accounts {
    /// Number of the next run, so that no two runs ever share a cell.
    next_run: usize,
    installed: Vec<usize>,
    /// Where each run was installed: its first cell, and the index.
    places: Vec<(usize, usize)>,
    handed: Vec<usize>,
    returned: Vec<usize>,
    /// How often the index was another one after a migration.
    migrations: usize,
    /// The index after the last migration before the commit.
    index: usize,
    /// Each index's pair at the beginning.
    pairs: Vec<[usize; 2]>,
}

static ACCOUNTS: Mutex<Accounts> = Mutex::new(Accounts {
    next_run: 1,
    installed: vec![],
    places: vec![],
    handed: vec![],
    returned: vec![],
    migrations: 0,
    index: 0,
    pairs: vec![],
});

fn accounts<R>(f: impl FnOnce(&mut Accounts) -> R) -> R {
    f(&mut ACCOUNTS.lock().unwrap())
}

fn slot(index: usize) -> &'static Slot {
    // SAFETY: as many slabs as indices are mapped, for ever.
    unsafe { &*ptr::with_exposed_provenance(SLOT.load(Ordering::Relaxed) + index * SLAB) }
}

fn pair(index: usize) -> [usize; 2] {
    [slot(index).frontier.load(Ordering::Relaxed), slot(index).limit.load(Ordering::Relaxed)]
}

fn cells(run: [usize; 2]) -> impl Iterator<Item = usize> {
    (run[0]..run[1]).step_by(CELL)
}

fn fresh_run() -> [usize; 2] {
    let n = accounts(|a| {
        a.next_run += 1;
        a.next_run
    });
    // Behind each run lies a gap, so that a step beyond a limit is seen.
    [n * 2 * RUN * CELL, n * 2 * RUN * CELL + RUN * CELL]
}

fn current() -> usize {
    GROUND.current_index().expect("there are sequences")
}

fn note_installed(run: [usize; 2], instead_of: [usize; 2]) {
    let place = (0..GROUND.indices() as usize).find(|&i| pair(i) == run).unwrap_or(usize::MAX);
    accounts(|a| {
        a.installed.extend(cells(run));
        a.places.push((run[0], place));
        a.returned.extend(cells(instead_of));
    });
}

fn note_handed(cell: usize) {
    if cell != 0 {
        accounts(|a| a.handed.push(cell));
    }
}

/// Replaces the current index's pair by a new run, whatever it was.
fn op_replace() {
    let run = fresh_run();
    loop {
        let seen = pair(current());
        // SAFETY: the ground is set up, and the slot is in its slabs.
        if unsafe { replace(&GROUND, SLOT.load(Ordering::Relaxed), seen, run) } {
            return note_installed(run, seen);
        }
    }
}

fn op_take() {
    // SAFETY: as in `op_replace`.
    note_handed(unsafe { bump(&GROUND, SLOT.load(Ordering::Relaxed), CELL) });
}

fn op_drain() {
    loop {
        // SAFETY: as in `op_replace`.
        match unsafe { bump(&GROUND, SLOT.load(Ordering::Relaxed), CELL) } {
            0 => return,
            cell => note_handed(cell),
        }
    }
}

fn op_refill() {
    op_drain();
    op_replace();
}

fn op_close() {
    for index in 0..GROUND.indices() as usize {
        let seen = pair(index);
        slot(index).limit.store(0, Ordering::Relaxed);
        assert!(membarrier::abort_sequences());
        accounts(|a| a.returned.extend(cells([slot(index).frontier.load(Ordering::Relaxed), seen[1]])));
    }
}

fn op_nothing() {}

/// Moves to a CPU where this thread has another index, if there is one.
fn op_migrate() {
    let before = current();
    for cpu in 0..cpus::possible() {
        pin(cpu);
        if current() != before {
            accounts(|a| {
                a.migrations += 1;
                // What was taken before the thread moved may come from where it was.
                if (0..a.pairs.len()).all(|i| pair(i) == a.pairs[i]) {
                    a.index = current();
                }
            });
            return;
        }
    }
}

/// Keeps the calling thread on one CPU; says whether that is possible.
fn pin(cpu: usize) -> bool {
    // SAFETY: the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

const HOSTILE: [(&str, fn()); 7] = [
    ("nothing", op_nothing),
    ("take", op_take),
    ("drain", op_drain),
    ("replace", op_replace),
    ("refill", op_refill),
    ("close", op_close),
    ("migrate", op_migrate),
];

/// A bump under test: slot, bytes, offset of `rseq_cs`, offset of the index, number of indices.
type Bump = extern "C" fn(usize, usize, isize, isize, usize) -> usize;

/// The shipped sequence, inlined here.
#[inline(never)]
extern "C" fn shipped(slot: usize, bytes: usize, _: isize, _: isize, _: usize) -> usize {
    // SAFETY: the ground is set up, and the slot is in its slabs.
    unsafe { bump(&GROUND, slot, bytes) }
}

/// Maps slabs and finds out about sequences. Threads keep every CPU's index in use, so that a migration changes it.
fn set_up() {
    trap::install();
    let possible = cpus::possible();
    GROUND.set_up(possible);
    assert!(GROUND.indices() > 0, "this kernel and C library have sequences");
    let slabs = memory::map_lazy(Bytes(possible * SLAB)).unwrap();
    SLOT.store(slabs.as_ptr().expose_provenance(), Ordering::Relaxed);
    for cpu in 0..possible {
        std::thread::spawn(move || {
            if pin(cpu) {
                loop {
                    larder_sys::thread::yield_now();
                }
            }
        });
    }
}

/// One experiment: a buffer with `rest` cells left, one bump with breakpoints, and the accounts after it.
fn bump_once(f: Bump, plan: &[usize], hostile: fn(), rest: usize) -> Result<trap::Trapped, String> {
    for index in 0..GROUND.indices() as usize {
        let run = fresh_run();
        slot(index).frontier.store(run[1] - rest * CELL, Ordering::Relaxed);
        slot(index).limit.store(run[1], Ordering::Relaxed);
        accounts(|a| {
            a.installed.extend(cells([run[1] - rest * CELL, run[1]]));
            a.places.push((run[0], index));
        });
    }
    accounts(|a| {
        a.index = usize::MAX;
        a.pairs = (0..GROUND.indices() as usize).map(pair).collect();
    });
    let area = rseq_area::find().unwrap();
    let (arm, index) = (area.offset + rseq_area::RSEQ_CS, area.index_offset());
    let at = SLOT.load(Ordering::Relaxed);
    let (cell, trapped) = trap::with_breakpoints(plan, hostile, || f(at, CELL, arm, index, GROUND.indices() as usize));
    let after = current();
    note_handed(cell);
    op_close();
    accounts(|a| {
        let run = cell - cell % (2 * RUN * CELL);
        let place = a.places.iter().find(|p| p.0 == run).map(|p| p.1);
        // Where the thread moved before the commit, and stayed, the cell must come from the buffer of its new index.
        let strange = cell != 0 && a.index == after && place != Some(after);
        let mut known = core::mem::take(&mut a.installed);
        let mut seen = core::mem::take(&mut a.handed);
        let handed = seen.len();
        seen.append(&mut a.returned);
        a.places.clear();
        known.sort_unstable();
        seen.sort_unstable();
        if strange {
            return Err(format!("a cell of index {place:?} was taken on index {after}"));
        }
        if known != seen {
            return Err(format!("{handed} cells were handed out; of {known:x?} there are {seen:x?}"));
        }
        Ok(trapped)
    })
}

/// What the experiments with one function did.
#[derive(Debug, Default)]
struct Tally {
    calls: usize,
    hits: usize,
    aborts: usize,
}

/// Every pair of breakpoints, with every hostile function, on a full, a nearly empty and an empty buffer.
fn try_everything(f: Bump) -> Result<Tally, String> {
    let function = trap::instructions_of(f as *const () as usize);
    let places: Vec<usize> = function.iter().map(|i| i.ip() as usize).collect();
    let mut tally = Tally::default();
    for &first in &places {
        // A second breakpoint at 0 is none.
        for &second in places.iter().chain([&0]) {
            for (name, hostile) in HOSTILE {
                for rest in [0, 1, RUN] {
                    let trapped = bump_once(f, &[first, second], hostile, rest).map_err(|e| {
                        let start = places[0];
                        format!(
                            "{name} at {:#x} and {:#x}, {rest} cells: {e}",
                            first - start,
                            second.wrapping_sub(start)
                        )
                    })?;
                    tally.calls += 1;
                    tally.hits += trapped.hits;
                    tally.aborts += trapped.aborts;
                }
            }
        }
    }
    Ok(tally)
}

#[test]
fn bump_loses_no_cell_at_any_instruction() {
    in_child("bump_loses_no_cell_at_any_instruction", &[], || {
        set_up();
        let function = trap::instructions_of(shipped as *const () as usize);
        let sequence = trap::sequence_in(&function);
        // One breakpoint each: exactly the instructions of the sequence abort, once, when they are met.
        for i in &function {
            let at = i.ip() as usize;
            let trapped = bump_once(shipped, &[at], op_nothing, RUN).unwrap();
            let inside = (sequence.start..sequence.start + sequence.length).contains(&at);
            assert_eq!(trapped.aborts, usize::from(inside), "at {:#x}", at - function[0].ip() as usize);
            assert!(!inside || trapped.hits == 1);
        }
        let tally = try_everything(shipped).unwrap();
        eprintln!("{tally:?}");
        assert!(tally.aborts > 1000 && accounts(|a| a.migrations) > 0, "{tally:?}");
    });
}

#[test]
fn replace_changes_all_or_nothing_at_any_instruction() {
    in_child("replace_changes_all_or_nothing_at_any_instruction", &[], || {
        set_up();
        // By its address, which the compiler does not know: a copy of it here would have none of the breakpoints.
        let replace: unsafe fn(&Ground, usize, [usize; 2], [usize; 2]) -> bool = hint::black_box(replace);
        let function = trap::instructions_of(replace as *const () as usize);
        let sequence = trap::sequence_in(&function);
        let mut hits = 0;
        for i in &function {
            for (name, hostile) in HOSTILE {
                for rest in [0, 2] {
                    for index in 0..GROUND.indices() as usize {
                        let run = fresh_run();
                        slot(index).frontier.store(run[1] - rest * CELL, Ordering::Relaxed);
                        slot(index).limit.store(run[1], Ordering::Relaxed);
                        accounts(|a| a.installed.extend(cells([run[1] - rest * CELL, run[1]])));
                    }
                    let (seen, new) = (pair(current()), fresh_run());
                    let at = SLOT.load(Ordering::Relaxed);
                    let (done, trapped) = trap::with_breakpoints(&[i.ip() as usize], hostile, || {
                        // SAFETY: the ground is set up, and the slot is in its slabs.
                        unsafe { replace(&GROUND, at, seen, new) }
                    });
                    hits += trapped.hits;
                    let inside = (sequence.start..sequence.start + sequence.length).contains(&(i.ip() as usize));
                    assert_eq!(trapped.aborts, trapped.hits * usize::from(inside), "{name} at {i:?}");
                    if name == "nothing" {
                        assert!(done, "nobody interfered");
                    }
                    if done {
                        accounts(|a| {
                            a.installed.extend(cells(new));
                            a.returned.extend(cells(seen));
                        });
                    }
                    op_close();
                    accounts(|a| {
                        let mut known = core::mem::take(&mut a.installed);
                        let mut all = core::mem::take(&mut a.handed);
                        all.append(&mut a.returned);
                        known.sort_unstable();
                        all.sort_unstable();
                        assert_eq!(known, all, "{name} at {:#x}", i.ip() - function[0].ip());
                    });
                }
            }
        }
        assert!(hits > 200, "{hits} breakpoints were met");
    });
}

/// A copy of the sequence with a fault. Arguments as in [`Bump`]: rdi, rsi, rdx, rcx, r8.
macro_rules! copy_of_bump {
    ($(#[$doc:meta])* $name:ident, abort to $again:literal, $($line:literal,)*) => {
        $(#[$doc])*
        #[unsafe(naked)]
        extern "C" fn $name(_: usize, _: usize, _: isize, _: isize, _: usize) -> usize {
            naked_asm!(
                $($line,)*
                "8:",
                "ret",
                ".pushsection __rseq_failure, \"ax\"",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                concat!("jmp ", $again),
                "6:",
                "xor eax, eax",
                "jmp 8b",
                ".popsection",
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "77:",
                ".long 0, 0",
                ".quad 3b, 4b - 3b, 5b",
                ".popsection",
                shift = const SLAB_SHIFT,
            )
        }
    };
}

copy_of_bump! {
    /// Without a fault: what finds faults must find none here.
    faithful, abort to "2b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "4:",
}

copy_of_bump! {
    /// The commit is not the last instruction: what is interrupted behind it is done twice.
    commit_not_last, abort to "2b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "mov r11, rax", "4:",
}

copy_of_bump! {
    /// The range ends one instruction too early: the commit is made though somebody came between.
    range_too_short, abort to "2b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "4:", "mov qword ptr [rdi + r9], r10",
}

copy_of_bump! {
    /// The abort handler does not arm again: the second interruption is not noticed.
    not_armed_again, abort to "3b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "4:",
}

copy_of_bump! {
    /// The index is read before the sequence is armed, and not again.
    index_before_arming, abort to "2b",
    "mov r9d, dword ptr fs:[rcx]",
    "2:", "lea r10, [rip + 77f]", "mov qword ptr fs:[rdx], r10",
    "3:", "mov r11d, r9d", "cmp r11d, r8d", "jae 6f", "shl r11, {shift}",
    "mov rax, qword ptr [rdi + r11]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r11 + 8]", "ja 6f",
    "mov qword ptr [rdi + r11], r10", "4:",
}

copy_of_bump! {
    /// The range begins one instruction too late, behind the reading of the frontier.
    range_too_late, abort to "2b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]",
    "3:", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "4:",
}

copy_of_bump! {
    /// Two stores to the buffer: the first stays when the second is interrupted.
    two_commits, abort to "2b",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, qword ptr [rdi + r9 + 8]", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "mov qword ptr [rdi + r9], r10", "4:",
}

copy_of_bump! {
    /// The limit is not looked at again after an abort: it is kept in a register from before.
    limit_before_arming, abort to "2b",
    "mov r9d, dword ptr fs:[rcx]", "shl r9, {shift}", "mov r11, qword ptr [rdi + r9 + 8]",
    "2:", "lea r9, [rip + 77f]", "mov qword ptr fs:[rdx], r9",
    "3:", "mov r9d, dword ptr fs:[rcx]", "cmp r9d, r8d", "jae 6f", "shl r9, {shift}",
    "mov rax, qword ptr [rdi + r9]", "lea r10, [rax + rsi]", "cmp r10, r11", "ja 6f",
    "mov qword ptr [rdi + r9], r10", "4:",
}

#[test]
fn every_fault_in_a_copy_of_bump_is_found() {
    in_child("every_fault_in_a_copy_of_bump_is_found", &[], || {
        set_up();
        try_everything(faithful).unwrap();
        let faults: [(&str, Bump); 7] = [
            ("commit_not_last", commit_not_last),
            ("range_too_short", range_too_short),
            ("not_armed_again", not_armed_again),
            ("index_before_arming", index_before_arming),
            ("range_too_late", range_too_late),
            ("two_commits", two_commits),
            ("limit_before_arming", limit_before_arming),
        ];
        for (name, faulty) in faults {
            match try_everything(faulty) {
                Ok(tally) => panic!("{name} was not found: {tally:?}"),
                Err(found) => eprintln!("{name}: {found}"),
            }
        }
    });
}

/// A thread's own buffer, for kernels without sequences. A cell may be lost for a while (it stays with its block), but
/// none may be handed out twice, and none that was not in the buffer.
#[test]
fn a_buffer_of_a_thread_hands_out_only_its_own_cells_at_any_instruction() {
    static OWN: Slot = Slot { frontier: AtomicUsize::new(0), limit: AtomicUsize::new(0) };

    #[inline(never)]
    extern "C" fn take_own(slot: &Slot) -> usize {
        // SAFETY: used by this thread and its handlers only.
        unsafe { bump_own(slot, CELL) }
    }
    fn hand_out() -> usize {
        let cell = take_own(&OWN);
        note_handed(cell);
        cell
    }
    fn take() {
        hand_out();
    }
    fn drain() {
        while hand_out() != 0 {}
    }
    fn refill() {
        drain();
        let run = fresh_run();
        replace_own(&OWN, run);
        accounts(|a| a.installed.extend(cells(run)));
    }
    fn refill_below() {
        drain();
        // A run at a lower address than every one before.
        let n = accounts(|a| {
            a.index -= 2 * RUN * CELL;
            a.index
        });
        let run = [n, n + RUN * CELL];
        replace_own(&OWN, run);
        accounts(|a| a.installed.extend(cells(run)));
    }
    fn close() {
        let limit = OWN.limit.swap(0, Ordering::Relaxed);
        accounts(|a| a.returned.extend(cells([OWN.frontier.load(Ordering::Relaxed), limit])));
    }
    fn close_and_refill() {
        close();
        refill();
    }
    in_child("a_buffer_of_a_thread_hands_out_only_its_own_cells_at_any_instruction", &[], || {
        trap::install();
        let hostile: [(&str, fn()); 7] = [
            ("nothing", op_nothing),
            ("take", take),
            ("drain", drain),
            ("refill", refill),
            ("refill_below", refill_below),
            ("close", close),
            ("close_and_refill", close_and_refill),
        ];
        accounts(|a| {
            a.next_run = 1 << 20;
            a.index = 1 << 28;
        });
        let function = trap::instructions_of(take_own as *const () as usize);
        let mut hits = 0;
        for i in &function {
            for (name, hostile) in hostile {
                for rest in [0, 1, RUN] {
                    let run = fresh_run();
                    replace_own(&OWN, [run[1] - rest * CELL, run[1]]);
                    accounts(|a| a.installed.extend(cells([run[1] - rest * CELL, run[1]])));
                    let (cell, trapped) = trap::with_breakpoints(&[i.ip() as usize], hostile, || take_own(&OWN));
                    hits += trapped.hits;
                    note_handed(cell);
                    close();
                    accounts(|a| {
                        let known = core::mem::take(&mut a.installed);
                        let mut seen = core::mem::take(&mut a.handed);
                        seen.append(&mut a.returned);
                        seen.sort_unstable();
                        let all = seen.len();
                        seen.dedup();
                        let at = i.ip() - function[0].ip();
                        assert_eq!(all, seen.len(), "{name} at {at:#x}, {rest} cells: a cell is there twice");
                        for cell in seen {
                            assert!(known.contains(&cell), "{name} at {at:#x}, {rest} cells: {cell:#x} is not ours");
                        }
                    });
                }
            }
        }
        assert!(hits > 50, "{hits} breakpoints were met");
    });
}

// ---- The heap.

/// Objects that the test keeps, and looks at in the end: address and pattern, in a registered table.
static KEPT: AtomicUsize = AtomicUsize::new(0);
static KEPT_TABLE: AtomicPtr<Words> = AtomicPtr::new(ptr::null_mut());
/// Request of the allocation that is interrupted. Sync: the thread that traps.
static REQUEST: AtomicUsize = AtomicUsize::new(0);

fn kept_table() -> Words {
    // SAFETY: set once, to a leaked box.
    unsafe { *KEPT_TABLE.load(Ordering::Relaxed) }
}

/// Keeps an object of the present request, after checking that it is cleared.
fn keep(at: *mut u8) {
    assert!(!at.is_null());
    let bytes = REQUEST.load(Ordering::Relaxed);
    // SAFETY: a fresh object of so many bytes.
    unsafe {
        assert_eq!(pattern::first_set(at, object::size(at.addr())), None, "{at:p} is not cleared");
        let n = KEPT.fetch_add(1, Ordering::Relaxed);
        pattern::fill(at, 0, bytes, n as u64);
        kept_table().set(n, at.expose_provenance());
    }
}

/// Looks at every kept object and lets all go.
fn check_kept() {
    let bytes = REQUEST.load(Ordering::Relaxed);
    for n in 0..KEPT.load(Ordering::Relaxed) {
        let at = kept_table().get(n);
        assert_eq!(object::base(at), Some(at));
        // SAFETY: the object is kept.
        assert_eq!(unsafe { pattern::broken_at(ptr::with_exposed_provenance(at), 0, bytes, n as u64) }, None);
    }
    kept_table().clear();
    KEPT.store(0, Ordering::Relaxed);
}

fn heap_take() {
    // SAFETY: kept at once.
    keep(unsafe { allocate(kind::NORMAL, REQUEST.load(Ordering::Relaxed)) });
}

/// Allocates until a buffer was filled, so that the interrupted one is another run.
fn heap_refill() {
    let before = stats::refills();
    heap_take();
    while stats::refills() == before && !in_slow_path() {
        heap_take();
    }
}

fn heap_collect() {
    assert!(cycle::collect() != in_slow_path());
}

fn heap_free() {
    let n = KEPT.load(Ordering::Relaxed);
    if n > 0 {
        KEPT.store(n - 1, Ordering::Relaxed);
        let at = kept_table().get(n - 1);
        kept_table().set(n - 1, 0);
        // SAFETY: nothing refers to it any more.
        unsafe { free(ptr::with_exposed_provenance_mut(at)) };
    }
}

#[inline(never)]
extern "C" fn allocate_here(bytes: usize) -> *mut u8 {
    // SAFETY: the callers keep the object.
    unsafe { allocate(kind::NORMAL, bytes) }
}

fn heap_is_hostile_everywhere(functions: &[usize], call: fn(usize) -> *mut u8) -> usize {
    let hostile: [(&str, fn()); 5] = [
        ("take", heap_take),
        ("refill", heap_refill),
        ("collect", heap_collect),
        ("free", heap_free),
        ("stop", stop_here),
    ];
    let places: Vec<usize> =
        functions.iter().flat_map(|f| trap::instructions_of(*f)).map(|i| i.ip() as usize).collect();
    let mut hits = 0;
    for bytes in [24, 500, 7000] {
        REQUEST.store(bytes, Ordering::Relaxed);
        for &place in &places {
            for (_, hostile) in hostile {
                // In the last round the sequence is aborted with a buffer that is nearly empty.
                for _ in 0..3 {
                    let (at, trapped) = trap::with_breakpoints(&[place], hostile, || call(bytes));
                    keep(at);
                    hits += trapped.hits;
                }
            }
            check_kept();
        }
        assert!(cycle::collect());
    }
    hits
}

fn set_up_heap() {
    trap::install();
    init(&Options::default());
    verifier::watch(Rules::EXACT);
    KEPT_TABLE.store(Box::leak(Box::new(Words::roots(1 << 16))), Ordering::Relaxed);
    start_collector();
}

#[test]
fn the_heap_hands_out_each_cell_once_at_any_instruction() {
    in_child("the_heap_hands_out_each_cell_once_at_any_instruction", &[], || {
        set_up_heap();
        assert!(!stats::by_thread());
        let hits = heap_is_hostile_everywhere(&[allocate_here as *const () as usize], |bytes| allocate_here(bytes));
        assert!(hits > 400, "{hits} breakpoints were met");
        assert!(cycles_made() > 100 && verifier::cycles() > 200);
    });
}

#[test]
fn the_slow_path_hands_out_each_cell_once_at_any_instruction() {
    in_child("the_slow_path_hands_out_each_cell_once_at_any_instruction", &[WITHOUT_SEQUENCES], || {
        set_up_heap();
        assert!(stats::by_thread());
        // Without sequences every allocation comes this way, and its buffer is the thread's.
        let slow = [allocate_slow as *const () as usize, allocate_below as *const () as usize];
        let hits = heap_is_hostile_everywhere(&slow, |bytes| allocate_here(bytes));
        assert!(hits > 400, "{hits} breakpoints were met");
        assert!(cycles_made() > 100 && verifier::cycles() > 200);
    });
}

/// Between survivors each run is a cell long, and waits on a shelf.
#[test]
fn cells_between_survivors_are_handed_out_once_at_any_instruction() {
    in_child("cells_between_survivors_are_handed_out_once_at_any_instruction", &[], || {
        const OBJECTS: usize = 2000;
        set_up_heap();
        let survivors = Words::roots(OBJECTS);
        let from_shelf = trap::function_named("from_shelf", "refill").expect("it has a frame of its own");
        let ways = [allocate_slow as *const () as usize, from_shelf];
        let slow: Vec<usize> = ways.into_iter().flat_map(trap::instructions_of).map(|i| i.ip() as usize).collect();
        let hostile: [fn(); 5] = [heap_take, heap_refill, heap_collect, heap_free, stop_here];
        let mut hits = 0;
        for bytes in [24, 500] {
            REQUEST.store(bytes, Ordering::Relaxed);
            let mut calls = 0;
            for &place in &slow {
                for hostile in hostile {
                    if calls % 100 == 0 {
                        check_kept();
                        for n in 0..2 * OBJECTS {
                            survivors.set(n / 2, allocate_here(bytes).expose_provenance());
                        }
                        assert!(cycle::collect());
                    }
                    let (at, trapped) = trap::with_breakpoints(&[place], hostile, || allocate_here(bytes));
                    keep(at);
                    hits += trapped.hits;
                    calls += 1;
                }
            }
            check_kept();
        }
        assert!(hits > 100, "{hits} breakpoints were met");
        assert!(cycles_made() > 20 && verifier::cycles() > 50);
    });
}

/// The copies of the sequence inside the heap's own functions.
#[test]
fn lists_and_aligned_objects_survive_a_stop_at_any_instruction() {
    in_child("lists_and_aligned_objects_survive_a_stop_at_any_instruction", &[], || {
        set_up_heap();
        REQUEST.store(100, Ordering::Relaxed);
        let mut hits = 0;
        for i in trap::instructions_of(allocate_many as *const () as usize) {
            // SAFETY: the list is kept object by object.
            let call = || unsafe { allocate_many(kind::NORMAL, 100) };
            let (mut at, trapped) = trap::with_breakpoints(&[i.ip() as usize], stop_here, call);
            hits += trapped.hits;
            while !at.is_null() {
                // SAFETY: the first word is the link to the next.
                let next = unsafe { at.cast::<*mut u8>().replace(ptr::null_mut()) };
                keep(at);
                at = next;
            }
            check_kept();
        }
        for i in trap::instructions_of(allocate_aligned as *const () as usize) {
            // SAFETY: looked at before anything else is allocated.
            let call = || unsafe { allocate_aligned(kind::NORMAL, 100, 256) };
            let (at, trapped) = trap::with_breakpoints(&[i.ip() as usize], stop_here, call);
            hits += trapped.hits;
            // SAFETY: the object is at least so long.
            assert_eq!((at.addr() % 256, unsafe { pattern::first_set(at, 100) }), (0, None));
            assert!(object::base(at.addr()).is_some());
        }
        assert!(hits > 30, "{hits} breakpoints were met");
    });
}

/// What the heap says about an object, and an explicit free, take several loads: a stop may come between any two.
#[test]
fn free_and_base_are_right_across_a_stop_at_any_instruction() {
    in_child("free_and_base_are_right_across_a_stop_at_any_instruction", &[], || {
        set_up_heap();
        REQUEST.store(40, Ordering::Relaxed);
        #[inline(never)]
        extern "C" fn free_here(at: *mut c_void) {
            // SAFETY: the caller passes an object that nothing refers to.
            unsafe { free(at.cast()) };
        }
        #[inline(never)]
        extern "C" fn base_here(address: usize) -> usize {
            object::base(address).unwrap_or(0)
        }
        let with_callees = |f: usize| {
            let own = trap::instructions_of(f);
            let called: Vec<_> = trap::callees(&own).into_iter().filter(|c| is_heap_code(*c)).collect();
            let deeper: Vec<_> = called.iter().flat_map(|c| trap::instructions_of(*c)).collect();
            own.into_iter().chain(deeper).map(|i| i.ip() as usize).collect::<Vec<_>>()
        };
        let mut hits = 0;
        for place in
            with_callees(free_here as *const () as usize).into_iter().chain(with_callees(free as *const () as usize))
        {
            // SAFETY: on this stack until it is freed.
            let at = unsafe { allocate(kind::NORMAL, 40) };
            let ((), trapped) = trap::with_breakpoints(&[place], stop_here, || free_here(at.cast()));
            hits += trapped.hits;
        }
        heap_take();
        let kept = kept_table().get(0);
        for place in with_callees(base_here as *const () as usize)
            .into_iter()
            .chain(with_callees(object::base as *const () as usize))
        {
            let (base, trapped) = trap::with_breakpoints(&[place], stop_here, || base_here(kept + 8));
            hits += trapped.hits;
            assert_eq!(base, kept, "stopped at {place:#x}");
        }
        check_kept();
        assert!(hits > 60, "{hits} breakpoints were met");
    });
}

/// How often a thread was asked to sweep, and how often it has. Sync: who asks adds to the first, the thread to the second.
static SWEEPS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Has another thread allocate until the blocks of uncollectable objects are swept through.
fn sweep_elsewhere() {
    let wanted = SWEEPS[0].fetch_add(1, Ordering::AcqRel) + 1;
    crowd::wait_until(|| SWEEPS[1].load(Ordering::Acquire) >= wanted);
}

/// What is freed behind a sweep that ended in the middle of a free is found again, and not lost until the next cycle.
#[test]
fn uncollectable_cells_are_found_again_when_a_sweep_ends_at_any_instruction_of_a_free() {
    in_child("uncollectable_cells_are_found_again_when_a_sweep_ends_at_any_instruction_of_a_free", &[], || {
        const SIZE: usize = 40;
        const OBJECTS: usize = 2000;
        // SAFETY: nothing is done with the objects.
        let make = || unsafe { allocate(kind::UNCOLLECTABLE, SIZE) };
        let block_of = |at: *mut u8| at.addr() / BLOCK.0;
        trap::install();
        init(&Options::default());
        cycle::disable();
        let _ = crowd::spawn(move || {
            loop {
                crowd::wait_until(|| SWEEPS[0].load(Ordering::Acquire) > SWEEPS[1].load(Ordering::Relaxed));
                (0..OBJECTS).for_each(|_| _ = make());
                SWEEPS[1].fetch_add(1, Ordering::Release);
            }
        });
        let way = trap::function_named("free_elsewhere", "allocate").expect("it has a frame of its own");
        let mut hits = 0;
        for place in trap::instructions_of(way) {
            let objects: Vec<_> = (0..OBJECTS).map(|_| make()).collect();
            let block = block_of(objects[OBJECTS / 2]);
            let mut of_block: Vec<_> = objects.into_iter().filter(|&at| block_of(at) == block).collect();
            let (first, second) = (of_block.pop().unwrap(), of_block.pop().unwrap());
            // SAFETY: nobody has it any more. By this one it is known how many are left.
            unsafe { free(first) };
            // SAFETY: as above.
            let free_second = || unsafe { free(second) };
            let ((), trapped) = trap::with_breakpoints(&[place.ip() as usize], sweep_elsewhere, free_second);
            hits += trapped.hits;
            let freed = of_block.len();
            // SAFETY: as above.
            of_block.into_iter().for_each(|at| unsafe { free(at) });
            let found = (0..4 * OBJECTS).filter(|_| block_of(make()) == block).count();
            assert!(found >= freed, "{found} of {freed} cells, interrupted at {:#x}", place.ip());
        }
        assert!(hits > 20, "{hits} breakpoints were met");
    });
}

/// Whether a function is one whose instructions may be replaced here: not what a hostile function or the other threads
/// run too, which is everything that takes a lock.
fn is_heap_code(function: usize) -> bool {
    // A short function without calls is a look-up.
    let instructions = trap::instructions_of(function);
    trap::callees(&instructions).is_empty() && instructions.len() < 120
}
