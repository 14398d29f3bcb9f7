//! Every interleaving of two and three threads, instruction by instruction, on the sequences as they are in this program;
//! and the same for sequences with a fault each, which must all be found.

#[path = "steps/code.rs"]
mod code;
#[path = "steps/compiled.rs"]
mod compiled;
#[path = "copies/mod.rs"]
mod copies;
#[path = "steps/fingerprint.rs"]
mod fingerprint;
#[path = "steps/heap.rs"]
mod heap;
#[path = "steps/machine.rs"]
mod machine;
#[path = "steps/mutants.rs"]
mod mutants;
#[path = "shape/program.rs"]
mod program;
#[path = "steps/script.rs"]
mod script;
#[path = "shape/mod.rs"]
mod shape;

use code::Code;
use machine::{AREAS, Explored, FRAME, HEAP, STRIDE, Setting, Words, ends, explore};
use script::{Accounts, Script, Step};

/// Offset of the content in an area.
const CONTENT: u64 = 64;

fn area(index: u64) -> u64 {
    AREAS + index * STRIDE
}

/// A transaction that adds one to the index's first word, read in the body; tried once.
fn increment(place: u8, l: &mut [u64; 6], (rax, rdx): (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Call("begin", [FRAME, 0, 0, 0, 0, 0]),
        1 if rax == 0 => Step::Done,
        1 => {
            (l[0], l[1]) = (rax, rdx);
            Step::Load(area(rdx) + CONTENT, 2)
        }
        2 => Step::Call("commit_store_64", [FRAME, l[1], l[0], area(l[1]) + CONTENT, l[2] + 1, 0]),
        _ => {
            accounts.added += u64::from(rax == 0);
            Step::Done
        }
    }
}

/// The same by the compare form, and then a second commit in a chain.
fn chain(place: u8, l: &mut [u64; 6], (rax, rdx): (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Call("begin", [FRAME, 0, 0, 0, 0, 0]),
        1 if rax == 0 => Step::Done,
        1 => {
            (l[0], l[1]) = (rax, rdx);
            Step::Load(area(rdx) + CONTENT, 2)
        }
        2 => Step::Call("commit_compare_64", [FRAME, l[1], l[0], area(l[1]) + CONTENT, l[2], l[2] + 1]),
        3 if rax != 0 => {
            // A mismatch breaks the rules: nobody else writes the word while the transaction holds.
            accounts.added += if rax == 2 { 100 } else { 0 };
            Step::Done
        }
        3 => {
            accounts.added += 1;
            Step::Call("commit_store_64", [FRAME, l[1], l[0], area(l[1]) + CONTENT, l[2] + 2, 0])
        }
        _ => {
            accounts.added += u64::from(rax == 0);
            Step::Done
        }
    }
}

/// As `increment`, by the forms of 32 bits: a store, then a compare in a chain.
fn small(place: u8, l: &mut [u64; 6], (rax, rdx): (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Call("begin", [FRAME, 0, 0, 0, 0, 0]),
        1 if rax == 0 => Step::Done,
        1 => {
            (l[0], l[1]) = (rax, rdx);
            Step::Load(area(rdx) + CONTENT, 2)
        }
        2 => Step::Call("commit_store_32", [FRAME, l[1], l[0], area(l[1]) + CONTENT, l[2] + 1, 0]),
        3 if rax != 0 => Step::Done,
        3 => {
            accounts.added += 1;
            Step::Call("commit_compare_32", [FRAME, l[1], l[0], area(l[1]) + CONTENT, l[2] + 1, l[2] + 2])
        }
        _ => {
            // A mismatch breaks the rules, as in `chain`.
            accounts.added += [1, 0, 100][rax as usize];
            Step::Done
        }
    }
}

/// As `increment`, by the pair form: the second word is changed together with the first. The request is the thread's own.
fn pair<const REQUEST: u64>(place: u8, l: &mut [u64; 6], (rax, rdx): (u64, u64), accounts: &mut Accounts) -> Step {
    let word = |n: u64| HEAP + REQUEST + 8 * n;
    match place {
        0 => Step::Call("begin", [FRAME, 0, 0, 0, 0, 0]),
        1 if rax == 0 => Step::Done,
        1 => {
            (l[0], l[1]) = (rax, rdx);
            Step::Load(area(rdx) + CONTENT, 2)
        }
        2 => Step::Load(area(l[1]) + CONTENT + 8, 3),
        3 => Step::Store(word(0), l[2]),
        4 => Step::Store(word(1), l[3]),
        5 => Step::Store(word(2), l[2] + 1),
        6 => Step::Store(word(3), l[3] + 1),
        7 => Step::Store(word(4), area(l[1]) + CONTENT),
        8 => Step::Store(word(5), l[1]),
        9 => Step::Store(word(6), l[0]),
        10 => Step::Call("commit_pair", [FRAME, word(0), 0, 0, 0, 0]),
        _ => {
            accounts.added += [1, 0, 100][rax as usize];
            Step::Done
        }
    }
}

/// Takes index 0 over and its words with it.
fn take_over(place: u8, l: &mut [u64; 6], _: (u64, u64), accounts: &mut Accounts) -> Step {
    match place {
        0 => Step::Store(area(0) + 8, 1),
        1 => Step::Membarrier,
        2 => Step::Load(area(0), 0),
        3 => Step::Store(area(0), l[0] + 1),
        4 => Step::Load(area(0) + CONTENT, 1),
        5 => Step::Store(area(0) + CONTENT, 0),
        6 => {
            accounts.found += l[1];
            Step::Store(area(0) + 8, 0)
        }
        _ => Step::Done,
    }
}

fn sum_agrees(memory: Words<'_>, accounts: &Accounts) -> Result<(), String> {
    let left = memory(area(0) + CONTENT) + memory(area(1) + CONTENT);
    if left + accounts.found == accounts.added {
        return Ok(());
    }
    Err(format!("{} added, {} found, {left} left", accounts.added, accounts.found))
}

/// The same where the word of index 0 was 5 in the beginning.
fn sum_agrees_from_five(memory: Words<'_>, accounts: &Accounts) -> Result<(), String> {
    sum_agrees(memory, &Accounts { added: accounts.added + 5, ..*accounts })
}

fn transactions<'s>(threads: &'s [Script], cpus: usize, switches: u8, by_id: bool) -> Setting<'s> {
    Setting { threads, handler: None, cpus, switches, by_id, memory: &[], check: sum_agrees }
}

fn report(what: &str, explored: Explored) {
    eprintln!("{what}: {} states, {} ends, {} aborts", explored.states, explored.ends, explored.aborts);
    assert!(explored.ends > 0 && explored.aborts > 0, "{what}: {explored:?}");
}

fn clean(what: &str, setting: &Setting<'_>) {
    clean_as(&Code::shipped(), what, setting);
}

fn clean_as(code: &Code, what: &str, setting: &Setting<'_>) {
    let explored = explore(code, setting).unwrap_or_else(|e| panic!("{what}: {e}"));
    report(what, explored);
}

#[test]
fn transactions_of_two_threads() {
    for by_id in [false, true] {
        clean("one CPU", &transactions(&[increment, increment], 1, 4, by_id));
        clean("two CPUs", &transactions(&[increment, increment], 2, 3, by_id));
        clean("chains", &transactions(&[chain, chain], 1, 3, by_id));
        clean("chains on two CPUs", &transactions(&[chain, increment], 2, 2, by_id));
    }
}

/// What is explored together ends as it does one instruction at a time.
#[test]
fn taking_instructions_together_leaves_out_no_end() {
    let memory = filled();
    let code = Code::shipped();
    let popping = [one_shot::list_pop as Script, one_shot::pop_and_push];
    let settings = [
        transactions(&[increment, increment], 1, 2, true),
        transactions(&[increment, take_over], 2, 1, true),
        transactions(&[pair::<0>, increment], 2, 1, false),
        Setting { handler: Some(chain), ..transactions(&[increment], 2, 1, true) },
        shots(&popping, 2, 1, &memory),
        shots(&[one_shot::stack_push_many, one_shot::take_all], 2, 1, &memory),
    ];
    for (n, setting) in settings.iter().enumerate() {
        let (together, one_by_one) = (ends(&code, setting, false), ends(&code, setting, true));
        eprintln!("setting {n}: {} states, one by one {}", together.0.states, one_by_one.0.states);
        assert!(
            together.1 == one_by_one.1,
            "setting {n}: {} ends, one by one {}",
            together.1.len(),
            one_by_one.1.len()
        );
        assert!(together.0.states < one_by_one.0.states, "setting {n}: nothing was taken together");
    }
}

#[test]
fn the_other_forms_of_commit() {
    let all: [[Script; 2]; 3] = [[small, small], [small, increment], [pair::<0>, pair::<0x40>]];
    for threads in all {
        clean("one CPU", &transactions(&threads, 1, 3, false));
        clean("two CPUs", &transactions(&threads, 2, 2, true));
        clean("with a take-over", &transactions(&[threads[0], take_over], 2, 2, true));
    }
}

#[test]
fn transactions_of_three_threads() {
    clean("one CPU", &transactions(&[increment, increment, increment], 1, 3, false));
    clean("two CPUs", &transactions(&[increment, increment, increment], 2, 2, true));
}

#[test]
fn transactions_with_a_handler_that_has_its_own() {
    for by_id in [false, true] {
        let setting = Setting { handler: Some(increment), ..transactions(&[increment, increment], 1, 1, by_id) };
        clean("handlers", &setting);
        let setting = Setting { handler: Some(increment), ..transactions(&[increment], 2, 4, by_id) };
        clean("one thread that moves, with a handler", &setting);
    }
}

#[test]
fn transactions_and_a_take_over() {
    for by_id in [false, true] {
        clean("one CPU", &transactions(&[increment, take_over], 1, 4, by_id));
        clean("two CPUs", &transactions(&[increment, take_over], 2, 3, by_id));
        clean("three threads", &transactions(&[increment, increment, take_over], 2, 2, by_id));
    }
}

/// What each one-shot sequence does once, its arguments from the thread's number.
mod one_shot {
    use super::*;

    pub const HEAD: u64 = CONTENT + 8;
    pub const REGION: u64 = CONTENT + 16;
    pub const STACK: u64 = CONTENT + 32;
    pub const WORD: u64 = CONTENT;
    pub const SECOND: u64 = CONTENT + 80;
    /// Requests of batches and pairs, and the callers' words.
    pub const REQUESTS: u64 = HEAP + 0x80;
    /// Where a frontier is guessed. It holds 0 in the beginning.
    pub const GUESS: u64 = HEAP + 0x138;
    pub const NODES: u64 = HEAP;

    pub fn add(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("add", [FRAME, WORD, 1, 0, 0, 0]),
            _ => {
                accounts.added += u64::from(rax == 0);
                Step::Done
            }
        }
    }

    pub fn compare_store(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("compare_store", [FRAME, WORD, 0, 1, 0, 0]),
            _ => {
                accounts.added += u64::from(rax == 0);
                Step::Done
            }
        }
    }

    /// Adds one to the word while the second word is what it was.
    pub fn compare_two_store(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("compare_two_store", [FRAME, WORD, 0, 1, SECOND, 0]),
            _ => {
                accounts.added += u64::from(rax == 0);
                Step::Done
            }
        }
    }

    pub fn exchange(place: u8, l: &mut [u64; 6], (rax, rdx): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => {
                // Any number that no other exchange uses: how many were put before.
                l[0] = 1000 + accounts.put.len() as u64;
                accounts.put(l[0]);
                Step::Call("exchange", [FRAME, SECOND, l[0], 0, 0, 0])
            }
            _ => {
                accounts.got(if rdx == 0 { rax } else { l[0] });
                Step::Done
            }
        }
    }

    pub fn list_pop(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("list_pop", [FRAME, HEAD, 0, 0, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    /// Pops and puts back, so that the same node can come again (ABA).
    pub fn pop_and_push(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("list_pop", [FRAME, HEAD, 0, 0, 0, 0]),
            1 if rax == 0 || rax == u64::MAX => Step::Done,
            1 => {
                l[0] = rax;
                Step::Call("list_push", [FRAME, HEAD, l[0], l[0], 0, 0])
            }
            _ => {
                accounts.got(if rax == 0 { 0 } else { l[0] });
                Step::Done
            }
        }
    }

    pub fn bump(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("bump", [FRAME, REGION, 16, 0, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    pub fn bump_header(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("bump_header", [FRAME, REGION, 16, 77, 0, 0]),
            1 if rax == 0 || rax == u64::MAX => Step::Done,
            1 => {
                l[0] = rax;
                Step::Load(rax, 1)
            }
            _ => {
                // What was taken without its header does not count as got.
                accounts.got(if l[1] == 77 { l[0] } else { 0 });
                Step::Done
            }
        }
    }

    pub fn stack_pop(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("stack_pop", [FRAME, STACK, 0, 0, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    pub fn stack_push(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => {
                l[0] = 2000 + accounts.put.len() as u64;
                accounts.put(l[0]);
                Step::Call("stack_push", [FRAME, STACK, l[0], 4, 0, 0])
            }
            _ => {
                accounts.got(if rax == 0 { 0 } else { l[0] });
                Step::Done
            }
        }
    }

    /// The request lies in memory: offset, words, count, capacity.
    pub fn stack_pop_many(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("stack_pop_many", [FRAME, REQUESTS, 0, 0, 0, 0]),
            1 if rax == 0 || rax == u64::MAX => Step::Done,
            1 => {
                l[0] = rax;
                Step::Load(REQUESTS + 0x20, 1)
            }
            2 => Step::Load(REQUESTS + 0x28, 2),
            _ => {
                accounts.got(l[1]);
                accounts.got(if l[0] > 1 { l[2] } else { 0 });
                Step::Done
            }
        }
    }

    pub fn stack_push_many(place: u8, l: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => {
                accounts.put(3001);
                accounts.put(3002);
                l[0] = REQUESTS + 0x40;
                Step::Call("stack_push_many", [FRAME, l[0], 0, 0, 0, 0])
            }
            _ => {
                let n = if rax == u64::MAX { 0 } else { rax };
                (n..2).for_each(|i| accounts.got(3001 + i));
                Step::Done
            }
        }
    }

    /// Replaces [0, 0] or the first region by a second one.
    pub fn compare_store_pair(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("compare_store_pair", [FRAME, REGION, REQUESTS + 0x60, 0, 0, 0]),
            _ => {
                if rax == 0 {
                    // The exhausted region is gone; the new one has one piece.
                    accounts.put(HEAP + 0x60);
                }
                Step::Done
            }
        }
    }

    pub fn level_add(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("level_add", [FRAME, WORD, 1, 0, 0, 0]),
            _ => {
                accounts.added += u64::from(rax == 0);
                Step::Done
            }
        }
    }

    pub fn level_compare_store(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("level_compare_store", [FRAME, WORD, 0, 1, 0, 0]),
            _ => {
                accounts.added += u64::from(rax == 0);
                Step::Done
            }
        }
    }

    pub fn level_bump(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("level_bump", [FRAME, REGION, 16, 0, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    pub fn level_bump_numbered(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("level_bump_numbered", [FRAME, REGION, 16, 0, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    /// Both threads have one guess, which is wrong in the beginning and most of the time after.
    pub fn level_bump_guessed(place: u8, _: &mut [u64; 6], (rax, _): (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Call("level_bump_guessed", [FRAME, REGION, 16, GUESS, 0, 0]),
            _ => {
                accounts.got(if rax == u64::MAX { 0 } else { rax });
                Step::Done
            }
        }
    }

    pub fn level_compare_store_pair(
        place: u8,
        _: &mut [u64; 6],
        (rax, _): (u64, u64),
        accounts: &mut Accounts,
    ) -> Step {
        match place {
            0 => Step::Call("level_compare_store_pair", [FRAME, REGION, REQUESTS + 0x60, 0, 0, 0]),
            _ => {
                if rax == 0 {
                    accounts.put(HEAP + 0x60);
                }
                Step::Done
            }
        }
    }

    /// Takes index 0 over and empties all of it. (Levels: index 1 leads to area 0 as well.)
    pub fn take_all(place: u8, l: &mut [u64; 6], _: (u64, u64), accounts: &mut Accounts) -> Step {
        match place {
            0 => Step::Store(area(0) + 8, 1),
            1 => Step::Membarrier,
            2 => Step::Load(area(0) + WORD, 0),
            3 => Step::Store(area(0) + WORD, 0),
            4 => Step::Load(area(0) + HEAD, 1),
            5 => Step::Store(area(0) + HEAD, 0),
            6 if l[1] != 0 => {
                accounts.got(l[1]);
                Step::Load(l[1], 1)
            }
            6 => Step::Go(8),
            7 => Step::Go(6),
            8 => Step::Load(area(0) + STACK, 2),
            9 if l[2] != 0 => Step::Load(area(0) + STACK + 8 * l[2], 3),
            9 => Step::Go(11),
            10 => {
                accounts.got(l[3]);
                l[2] -= 1;
                Step::Go(9)
            }
            11 => Step::Store(area(0) + STACK, 0),
            12 => Step::Load(area(0) + REGION, 3),
            13 => Step::Load(area(0) + REGION + 8, 4),
            14 => {
                (l[3]..l[4]).step_by(16).for_each(|piece| accounts.got(piece));
                Step::Store(area(0) + REGION, 0)
            }
            15 => Step::Store(area(0) + REGION + 8, 0),
            16 => {
                accounts.found += l[0];
                Step::Store(area(0) + 8, 0)
            }
            _ => Step::Done,
        }
    }

    /// Everything that is in the areas in the end came in, and nothing else.
    pub fn check(memory: Words<'_>, accounts: &Accounts) -> Result<(), String> {
        let mut all = accounts.got.to_vec();
        let mut left = accounts.found;
        for index in 0..2 {
            let word = |offset: u64| memory(area(index) + offset);
            left += word(WORD);
            all.extend(Some(word(SECOND)).filter(|&w| w >= 1000));
            let mut node = word(HEAD);
            while node != 0 {
                all.push(node);
                if all.len() > 50 {
                    return Err("the list has no end".into());
                }
                node = memory(node);
            }
            all.extend((1..=word(STACK)).map(|n| word(STACK + 8 * n)));
            all.extend((word(REGION)..word(REGION + 8)).step_by(16));
        }
        all.sort_unstable();
        let mut put = accounts.put.to_vec();
        // What is there in the beginning: two nodes, two words on the stack, two pieces; in index 0.
        put.extend([NODES, NODES + 16, 1900, 1901, HEAP + 0x40, HEAP + 0x50]);
        put.sort_unstable();
        if all != put {
            return Err(format!("put {put:x?}, found {all:x?}"));
        }
        if left != accounts.added {
            return Err(format!("{} added, {left} found", accounts.added));
        }
        Ok(())
    }

    /// Memory in the beginning.
    pub const FILLED: [(u64, u64); 18] = [
        (AREAS + HEAD, NODES),
        (NODES, NODES + 16),
        (AREAS + STACK, 2),
        (AREAS + STACK + 8, 1900),
        (AREAS + STACK + 16, 1901),
        (AREAS + REGION, HEAP + 0x40),
        (AREAS + REGION + 8, HEAP + 0x60),
        (REQUESTS, STACK),
        (REQUESTS + 8, REQUESTS + 0x20),
        (REQUESTS + 0x10, 2),
        (REQUESTS + 0x40, STACK),
        (REQUESTS + 0x48, HEAP + 0x170),
        (REQUESTS + 0x50, 2),
        (REQUESTS + 0x58, 4),
        // The pair that is expected, exhausted, and the new one.
        (REQUESTS + 0x60, HEAP + 0x60),
        (REQUESTS + 0x68, HEAP + 0x60),
        (REQUESTS + 0x70, HEAP + 0x60),
        (REQUESTS + 0x78, HEAP + 0x70),
    ];

    /// The words that `stack_push_many` puts on the stack.
    pub const MORE: [(u64, u64); 2] = [(HEAP + 0x170, 3001), (HEAP + 0x178, 3002)];
}

fn shots<'s>(threads: &'s [Script], cpus: usize, switches: u8, memory: &'s [(u64, u64)]) -> Setting<'s> {
    Setting { threads, handler: None, cpus, switches, by_id: true, memory, check: one_shot::check }
}

fn filled() -> Vec<(u64, u64)> {
    one_shot::FILLED.into_iter().chain(one_shot::MORE).collect()
}

/// Each sequence against itself, against a rival on the same words, with a handler, and with a take-over.
#[test]
fn every_one_shot_sequence() {
    use one_shot::*;
    let memory = filled();
    let pairs: [(Script, Script); 22] = [
        (add, add),
        (compare_store, add),
        (compare_two_store, compare_store),
        (exchange, exchange),
        (list_pop, pop_and_push),
        (pop_and_push, pop_and_push),
        (bump, bump_header),
        (bump_header, bump_header),
        (stack_pop, stack_push),
        (stack_push, stack_push),
        (stack_pop_many, stack_push),
        (stack_push_many, stack_pop),
        (compare_store_pair, bump),
        (level_add, level_compare_store),
        (level_bump, level_bump),
        (level_compare_store_pair, level_bump),
        (level_bump_numbered, level_bump_numbered),
        (level_bump, level_bump_numbered),
        (level_compare_store_pair, level_bump_numbered),
        (level_bump_guessed, level_bump_guessed),
        (level_bump_numbered, level_bump_guessed),
        (level_compare_store_pair, level_bump_guessed),
    ];
    let threes = [(pop_and_push as Script, list_pop as Script), (bump, bump), (add, add)];
    every_pair(&Code::shipped(), &pairs, &threes, &memory);
}

/// The copies for inlining, likewise.
#[test]
fn every_inlined_sequence() {
    use one_shot::*;
    let pairs: [(Script, Script); 6] = [
        (add, add),
        (list_pop, pop_and_push),
        (pop_and_push, pop_and_push),
        (level_bump_guessed, level_bump_guessed),
        (level_bump_numbered, level_bump_guessed),
        (level_compare_store_pair, level_bump_guessed),
    ];
    every_pair(&Code::inlined(), &pairs, &[pairs[0], pairs[1]], &filled());
}

/// Transactions by the copies for inlining: among each other, with a handler, and with a take-over.
#[test]
fn inlined_transactions() {
    for code in [Code::inlined(), Code::inlined_in_c()] {
        inlined_transactions_of(&code);
    }
}

fn inlined_transactions_of(code: &Code) {
    let all: [[Script; 2]; 4] = [[increment, increment], [chain, chain], [small, increment], [pair::<0>, pair::<0x40>]];
    for threads in all {
        clean_as(code, "one CPU", &transactions(&threads, 1, 2, false));
        clean_as(code, "two CPUs", &transactions(&threads, 2, 1, true));
        clean_as(code, "with a take-over", &transactions(&[threads[0], take_over], 2, 2, true));
    }
    let setting = Setting { handler: Some(increment), ..transactions(&[increment, increment], 1, 1, true) };
    clean_as(code, "handlers", &setting);
    clean_as(code, "three threads", &transactions(&[increment, increment, take_over], 2, 1, false));
}

fn every_pair(code: &Code, pairs: &[(Script, Script)], threes: &[(Script, Script)], memory: &[(u64, u64)]) {
    let take_all: Script = one_shot::take_all;
    for (n, &(one, other)) in pairs.iter().enumerate() {
        clean_as(code, &format!("pair {n} on one CPU"), &shots(&[one, other], 1, 3, memory));
        clean_as(code, &format!("pair {n} on two CPUs"), &shots(&[one, other], 2, 2, memory));
        let alone = [one];
        let handled = Setting { handler: Some(other), ..shots(&alone, 2, 2, memory) };
        clean_as(code, &format!("pair {n} as handler"), &handled);
        clean_as(code, &format!("pair {n} and a take-over"), &shots(&[one, take_all], 2, 3, memory));
    }
    // Three threads: two work, one takes over.
    for (n, &(one, other)) in threes.iter().enumerate() {
        clean_as(code, &format!("three {n}"), &shots(&[one, other, take_all], 2, 2, memory));
    }
}
