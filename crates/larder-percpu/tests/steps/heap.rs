//! The two sequences by which the fixed heap allocates: a bump, and the replacement of a pair (frontier, limit) by which a refill
//! installs new memory; and their mutants.
//!
//! Each index has one buffer. A piece is 16 bytes, and only a number. Who replaces a buffer gets what was left in it.

use super::machine::{GROUND, SLOT};
use super::mutants::{found, is_bound, not_armed, one_long, one_short, unchecked};
use super::*;

const BUMP: &str = "bump of the fixed heap";
const REPLACE: &str = "replace of the fixed heap";

/// Where the slot of an index is.
fn slot(index: u64) -> u64 {
    SLOT + index * larder_percpu::sequence::SLAB as u64
}

/// Two pieces for index 0 in the beginning, one for index 1.
const FILLED: [(u64, u64); 4] = [(SLOT, 0x9000), (SLOT + 8, 0x9020), (slot_of_1(), 0x9100), (slot_of_1() + 8, 0x9110)];

const fn slot_of_1() -> u64 {
    SLOT + larder_percpu::sequence::SLAB as u64
}

fn pieces(frontier: u64, limit: u64) -> impl Iterator<Item = u64> {
    (frontier..limit).step_by(16)
}

fn bump(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Call(BUMP, [GROUND, SLOT, 16, 0, 0, 0]),
        _ => {
            accounts.got(rax);
            Step::Done
        }
    }
}

/// Replaces what it saw at index `INDEX`, wherever it runs by then, by a region of two pieces: as a refill does, which looks at
/// its index first and may have moved.
fn refill<const INDEX: u64>(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Load(slot(INDEX), 0),
        1 => Step::Load(slot(INDEX) + 8, 1),
        2 => {
            // Any region that no other refill has.
            l[2] = 0xa000 + 0x100 * accounts.put.len() as u64;
            pieces(l[2], l[2] + 32).for_each(|piece| accounts.put(piece));
            Step::Call(REPLACE, [GROUND, SLOT, l[0], l[1], l[2], l[2] + 32])
        }
        _ => {
            // The rest of the old one, or the new one if it was not installed.
            let (frontier, limit) = if rax == 1 { (l[0], l[1]) } else { (l[2], l[2] + 32) };
            pieces(frontier, limit).for_each(|piece| accounts.got(piece));
            Step::Done
        }
    }
}

/// The collector empties both buffers: it saves and closes the limits, aborts all sequences, and then looks how far the frontiers
/// came. It runs beside threads that it does not know, and so could not stop: those only bump.
fn retire(place: u8, l: &mut [u64; 6], _: (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Load(slot(0) + 8, 0),
        1 => Step::Store(slot(0) + 8, 0),
        2 => Step::Load(slot(1) + 8, 1),
        3 => Step::Store(slot(1) + 8, 0),
        4 => Step::Membarrier,
        5 => Step::Load(slot(0), 2),
        6 => Step::Load(slot(1), 3),
        _ => {
            pieces(l[2], l[0]).chain(pieces(l[3], l[1])).for_each(|piece| accounts.got(piece));
            Step::Done
        }
    }
}

/// A collector that does not wait for the sequences that began before.
fn retire_without_barrier(place: u8, l: &mut [u64; 6], r: (u64, u64), accounts: &mut Accounts) -> Step {
    if place == 4 { Step::Load(slot(0), 5) } else { retire(place, l, r, accounts) }
}

/// Every piece was handed out once, or is in a buffer.
fn check(memory: Words<'_>, accounts: &Accounts) -> Result<(), String> {
    let left = (0..2).flat_map(|index| pieces(memory(slot(index)), memory(slot(index) + 8)));
    let mut all: Vec<u64> = left.chain(accounts.got.iter().copied()).collect();
    all.sort_unstable();
    let mut put: Vec<u64> = [0x9000, 0x9010, 0x9100].into_iter().chain(accounts.put.iter().copied()).collect();
    put.sort_unstable();
    if all == put { Ok(()) } else { Err(format!("put {put:x?}, found {all:x?}")) }
}

fn heap<'s>(threads: &'s [Script], cpus: usize, switches: u8, by_id: bool) -> Setting<'s> {
    Setting { threads, handler: None, cpus, switches, by_id, memory: &FILLED, check }
}

#[test]
fn the_fixed_heaps_sequences() {
    let code = Code::of_the_heap();
    let pairs: [[Script; 2]; 4] =
        [[bump, bump], [bump, refill::<0>], [refill::<0>, refill::<0>], [refill::<0>, refill::<1>]];
    for by_id in [false, true] {
        for threads in &pairs {
            clean_as(&code, "one CPU", &heap(threads, 1, 4, by_id));
            clean_as(&code, "two CPUs", &heap(threads, 2, 3, by_id));
            for handler in [bump as Script, refill::<0>, refill::<1>] {
                let setting = Setting { handler: Some(handler), ..heap(&threads[..1], 2, 3, by_id) };
                clean_as(&code, "handlers", &setting);
            }
        }
        clean_as(&code, "three threads", &heap(&[bump, bump, refill::<0>], 2, 2, by_id));
        clean_as(&code, "a collector", &heap(&[bump, retire], 2, 3, by_id));
        clean_as(&code, "a collector and two threads", &heap(&[bump, bump, retire], 2, 2, by_id));
        let setting = Setting { handler: Some(bump), ..heap(&[bump, retire], 2, 1, by_id) };
        clean_as(&code, "a collector and handlers", &setting);
    }
}

/// From index 0's slot, which stands for the thread's own.
fn bump_of_thread(place: u8, l: &mut [u64; 6], r: (u64, u64), accounts: &mut Accounts) -> Step {
    match bump(place, l, r, accounts) {
        Step::Call(_, arguments) => Step::Call("bump of a thread", arguments),
        step => step,
    }
}

/// A thread's own buffer is used by the thread, its handlers, and a collector that aborts it.
#[test]
fn a_threads_own_sequence() {
    let code = Code::of_the_heap();
    let setting = |threads: &'static [Script]| Setting { handler: Some(bump_of_thread), ..heap(threads, 1, 3, true) };
    clean_as(&code, "a handler", &setting(&[bump_of_thread]));
    clean_as(&code, "a handler and a collector", &setting(&[bump_of_thread, retire]));
    found(&setting(&[bump_of_thread]), "bump of a thread", one_short);
    found(&setting(&[bump_of_thread]), "bump of a thread", not_armed);
}

#[test]
fn faults_of_the_fixed_heaps_sequences_are_found() {
    let mutant = |threads: &[Script], cpus: usize, name: &str, change: fn(&mut Code, &str)| {
        found(&heap(threads, cpus, 3, false), name, change);
    };
    mutant(&[bump, bump], 1, BUMP, one_short);
    mutant(&[bump, bump], 1, BUMP, one_long);
    mutant(&[bump, bump], 1, BUMP, not_armed);
    mutant(&[bump, bump], 2, BUMP, |code, name| {
        let range = code.range_of(name);
        code.ranges.get_mut(&range).unwrap().1 = 0;
    });
    // Beyond the limit: by one piece, when all are gone.
    mutant(&[bump, bump, bump, bump], 1, BUMP, |code, name| unchecked(code, name, is_bound));
    mutant(&[bump, refill::<0>], 2, REPLACE, one_short);
    mutant(&[refill::<0>, refill::<0>], 1, REPLACE, one_long);
}

#[test]
fn a_collector_without_barrier_is_found() {
    let code = Code::of_the_heap();
    explore(&code, &heap(&[bump, retire_without_barrier], 2, 2, false)).expect_err("the fault must be found");
}
