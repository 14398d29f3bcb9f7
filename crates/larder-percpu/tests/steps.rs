//! Every interleaving of two and three threads, instruction by instruction, on the sequences as they are in this program;
//! and the same for sequences with a fault each, which must all be found.

#[path = "steps/machine.rs"]
mod machine;

use machine::{AREAS, Accounts, Code, Explored, FRAME, HEAP, MEMORY, STRIDE, Script, Setting, Step, explore};

/// Offset of the content in an area.
const CONTENT: u64 = 64;

fn area(index: u64) -> u64 {
    AREAS + index * STRIDE
}

fn at(memory: &[u64], address: u64) -> u64 {
    memory[((address - MEMORY) / 8) as usize]
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

fn sum_agrees(memory: &[u64], accounts: &Accounts) -> Result<(), String> {
    let left = at(memory, area(0) + CONTENT) + at(memory, area(1) + CONTENT);
    if left + accounts.found == accounts.added {
        return Ok(());
    }
    Err(format!("{} added, {} found, {left} left", accounts.added, accounts.found))
}

/// The same where the word of index 0 was 5 in the beginning.
fn sum_agrees_from_five(memory: &[u64], accounts: &Accounts) -> Result<(), String> {
    sum_agrees(memory, &Accounts { added: accounts.added + 5, ..accounts.clone() })
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
    clean("two CPUs", &transactions(&[increment, increment, increment], 2, 1, true));
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
        clean("three threads", &transactions(&[increment, increment, take_over], 2, 1, by_id));
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
    pub fn check(memory: &[u64], accounts: &Accounts) -> Result<(), String> {
        let mut all = accounts.got.clone();
        let mut left = accounts.found;
        for index in 0..2 {
            let word = |offset: u64| at(memory, area(index) + offset);
            left += word(WORD);
            all.extend(Some(word(SECOND)).filter(|&w| w >= 1000));
            let mut node = word(HEAD);
            while node != 0 {
                all.push(node);
                if all.len() > 50 {
                    return Err("the list has no end".into());
                }
                node = at(memory, node);
            }
            all.extend((1..=word(STACK)).map(|n| word(STACK + 8 * n)));
            all.extend((word(REGION)..word(REGION + 8)).step_by(16));
        }
        all.sort_unstable();
        let mut put = accounts.put.clone();
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
    let pairs: [(Script, Script); 16] = [
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
    ];
    let threes = [(pop_and_push as Script, list_pop as Script), (bump, bump), (add, add)];
    every_pair(&Code::shipped(), &pairs, &threes, &memory);
}

/// The copies for inlining, likewise.
#[test]
fn every_inlined_sequence() {
    use one_shot::*;
    let pairs = [(add as Script, add as Script), (list_pop, pop_and_push), (pop_and_push, pop_and_push)];
    every_pair(&Code::inlined(), &pairs, &[pairs[0], pairs[1]], &filled());
}

/// Transactions by the copies for inlining: among each other, with a handler, and with a take-over.
#[test]
fn inlined_transactions() {
    let code = Code::inlined();
    let all: [[Script; 2]; 3] = [[increment, increment], [chain, chain], [small, increment]];
    for threads in all {
        clean_as(&code, "one CPU", &transactions(&threads, 1, 2, false));
        clean_as(&code, "two CPUs", &transactions(&threads, 2, 1, true));
        clean_as(&code, "with a take-over", &transactions(&[threads[0], take_over], 2, 2, true));
    }
    let setting = Setting { handler: Some(increment), ..transactions(&[increment, increment], 1, 1, true) };
    clean_as(&code, "handlers", &setting);
    clean_as(&code, "three threads", &transactions(&[increment, increment, take_over], 2, 1, false));
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
        clean_as(code, &format!("three {n}"), &shots(&[one, other, take_all], 2, 1, memory));
    }
}

/// Sequences with a fault: each must lead to an end that breaks the rules.
mod mutants {
    use super::*;

    /// A change of the shipped code that must be found by exploring `setting`.
    fn found(setting: &Setting<'_>, change: impl Fn(&mut Code)) {
        let mut code = Code::shipped();
        explore(&code, setting).expect("the shipped code has no fault");
        change(&mut code);
        let error = explore(&code, setting).expect_err("the fault must be found");
        let what = error.lines().next().unwrap_or_default();
        eprintln!("found: {what}");
        // By what it loses or doubles, not because the changed code makes no sense.
        assert!(what.contains("added") || what.contains("put"), "{what}");
    }

    /// A transaction and a take-over of something that is there.
    fn taken<'s>(threads: &'s [Script]) -> Setting<'s> {
        Setting { memory: &[(AREAS + CONTENT, 5)], check: sum_agrees_from_five, ..transactions(threads, 2, 2, false) }
    }

    fn last_of_range(code: &Code, name: &str) -> (u64, u64) {
        let addresses = code.addresses(name);
        let [.., commit, behind] = addresses[..] else { panic!("a range has instructions") };
        (commit, behind)
    }

    fn change_length(code: &mut Code, name: &str, by: impl Fn(u64, u64, u64) -> u64) {
        let (commit, behind) = last_of_range(code, name);
        let range = code.range_of(name);
        let entry = code.ranges.get_mut(&range).unwrap();
        entry.1 = by(entry.1, commit, behind);
    }

    /// Replaces the comparison whose text is given, and the branch behind it, by nothing.
    fn unchecked(code: &mut Code, name: &str, is_comparison: impl Fn(&iced_x86::Instruction) -> bool) {
        let addresses = code.addresses(name);
        let n = addresses
            .iter()
            .position(|ip| code.lines[ip].0.is_some_and(|i| is_comparison(&i)))
            .expect("the comparison is there");
        for ip in &addresses[n..n + 2] {
            code.lines.get_mut(ip).unwrap().0 = None;
        }
    }

    fn is_token(i: &iced_x86::Instruction) -> bool {
        use iced_x86::{Mnemonic, Register};
        i.mnemonic() == Mnemonic::Cmp && i.memory_base() == Register::R10 && i.memory_displacement64() == 0
    }

    fn is_closed(i: &iced_x86::Instruction) -> bool {
        use iced_x86::{Mnemonic, Register};
        i.mnemonic() == Mnemonic::Cmp && i.memory_base() == Register::R10 && i.memory_displacement64() == 8
    }

    fn is_index(i: &iced_x86::Instruction) -> bool {
        use iced_x86::{Mnemonic, Register};
        i.mnemonic() == Mnemonic::Cmp && i.op0_register() == Register::R10D && i.op1_register() == Register::ESI
    }

    #[test]
    fn a_range_one_instruction_short_is_found() {
        found(&transactions(&[increment, increment], 1, 3, false), |code| {
            change_length(code, "commit_store_64", |length, commit, behind| length - (behind - commit));
        });
        found(&transactions(&[increment, increment], 1, 3, false), |code| {
            change_length(code, "begin", |length, commit, behind| length - (behind - commit));
        });
        let memory = filled();
        for (name, script) in [
            ("list_pop", one_shot::list_pop as Script),
            ("list_push", one_shot::pop_and_push),
            ("bump", one_shot::bump),
            ("bump_header", one_shot::bump_header),
            ("stack_pop", one_shot::stack_pop),
            ("stack_push", one_shot::stack_push),
            ("compare_store", one_shot::compare_store),
            ("exchange", one_shot::exchange),
        ] {
            found(&shots(&[script, script], 1, 3, &memory), |code| {
                change_length(code, name, |length, commit, behind| length - (behind - commit));
            });
        }
    }

    #[test]
    fn a_range_one_instruction_long_is_found() {
        found(&transactions(&[increment, increment], 1, 3, false), |code| {
            let (_, behind) = last_of_range(code, "commit_store_64");
            let more = code.lines[&behind].1 - behind;
            change_length(code, "commit_store_64", |length, _, _| length + more);
        });
        let memory = filled();
        for (name, script) in
            [("list_pop", one_shot::list_pop as Script), ("add", one_shot::add), ("bump", one_shot::bump)]
        {
            found(&shots(&[script, script], 1, 2, &memory), |code| {
                let (_, behind) = last_of_range(code, name);
                let more = code.lines[&behind].1 - behind;
                change_length(code, name, |length, _, _| length + more);
            });
        }
    }

    #[test]
    fn a_commit_that_is_not_last_is_found() {
        // The store comes before the last comparison and its branch.
        found(&transactions(&[increment, take_over], 2, 3, false), |code| {
            let addresses = code.addresses("commit_store_64");
            let n = addresses.len();
            let lines: Vec<_> = addresses[n - 4..n - 1].iter().map(|ip| code.lines[ip].0).collect();
            for (ip, line) in addresses[n - 4..n - 1].iter().zip([lines[2], lines[0], lines[1]]) {
                code.lines.get_mut(ip).unwrap().0 = line;
            }
        });
    }

    #[test]
    fn an_abort_that_does_not_arm_again_is_found() {
        // It goes on where the index is read.
        let not_armed = |code: &mut Code, name: &str| {
            let again = code.addresses(name)[2];
            let range = code.range_of(name);
            code.ranges.get_mut(&range).unwrap().2 = again;
        };
        found(&transactions(&[increment, increment], 1, 3, false), |code| not_armed(code, "commit_store_64"));
        let memory = filled();
        found(&shots(&[one_shot::list_pop, one_shot::list_pop], 1, 3, &memory), |code| not_armed(code, "list_pop"));
    }

    /// Begin reads the index first and arms then: what is between is not protected, and an abort does not read it again.
    #[test]
    fn arming_after_the_index_is_read_is_found() {
        found(&transactions(&[increment, increment], 2, 3, false), |code| {
            let range = code.range_of("begin");
            let entry = code.entries["begin"];
            // Places: lea, mov, arm | cmp, ja, mov, mov index. New order: mov, mov index, lea, mov, arm | cmp, ja
            let mut places = vec![entry];
            while places.len() < 7 {
                places.push(code.lines[places.last().unwrap()].1);
            }
            let lines: Vec<_> = places.iter().map(|ip| code.lines[ip].0).collect();
            for (ip, n) in places.iter().zip([5, 6, 0, 1, 2, 3, 4]) {
                code.lines.get_mut(ip).unwrap().0 = lines[n];
            }
            let (start, length, _) = code.ranges[&range];
            code.ranges.insert(range, (places[5], start + length - places[5], places[2]));
        });
    }

    #[test]
    fn a_token_that_is_not_checked_is_found() {
        found(&transactions(&[increment, increment], 1, 3, false), |code| {
            unchecked(code, "commit_store_64", is_token);
        });
        found(&transactions(&[chain, chain], 1, 3, false), |code| unchecked(code, "commit_compare_64", is_token));
        found(&transactions(&[small, small], 1, 3, false), |code| unchecked(code, "commit_store_32", is_token));
        let pairs: [Script; 2] = [pair::<0>, pair::<0x40>];
        found(&transactions(&pairs, 1, 3, false), |code| {
            unchecked(code, "commit_pair", is_token);
        });
    }

    /// The commit trusts the index of the transaction and does not read the present one.
    #[test]
    fn an_index_that_is_not_read_again_is_found() {
        // Somebody has begun on index 1 before, so that the two tokens can be alike.
        let setting = Setting { memory: &[(AREAS + STRIDE, 1)], ..transactions(&[increment, increment], 2, 3, false) };
        found(&setting, |code| unchecked(code, "commit_store_64", is_index));
    }

    /// The interleaving for which begin must be a sequence: the thread reads its index, moves, stores its token beside a
    /// commit that is under way on the old CPU, reads what that is about to change, comes back, and commits.
    #[test]
    fn begin_as_a_plain_store_is_found() {
        found(&transactions(&[increment, increment], 2, 3, false), |code| {
            let range = code.range_of("begin");
            code.ranges.get_mut(&range).unwrap().1 = 0;
        });
        found(&transactions(&[increment, increment], 2, 3, true), |code| {
            let range = code.range_of("begin");
            code.ranges.get_mut(&range).unwrap().1 = 0;
        });
    }

    #[test]
    fn a_closed_word_that_is_not_tested_is_found() {
        found(&taken(&[increment, take_over]), |code| unchecked(code, "commit_store_64", is_closed));
        found(&taken(&[increment, take_over]), |code| unchecked(code, "begin", is_closed));
        let memory = filled();
        for (name, script) in [
            ("add", one_shot::add as Script),
            ("list_pop", one_shot::list_pop),
            ("bump", one_shot::bump),
            ("stack_pop", one_shot::stack_pop),
            ("level_add", one_shot::level_add),
        ] {
            found(&shots(&[script, one_shot::take_all], 2, 2, &memory), |code| unchecked(code, name, is_closed));
        }
    }

    /// The two comparisons of the commit in the other order: a whole take-over fits between them.
    #[test]
    fn a_token_that_is_tested_before_the_closed_word_is_found() {
        found(&transactions(&[increment, increment, take_over], 2, 0, false), |code| {
            let addresses = code.addresses("commit_store_64");
            let line = |code: &Code, n: usize| code.lines[&addresses[n]].0;
            let n = addresses
                .iter()
                .position(|ip| code.lines[ip].0.is_some_and(|i| is_closed(&i)))
                .expect("the closed word is tested");
            let exchanged = [line(code, n + 2), line(code, n + 3), line(code, n), line(code, n + 1)];
            for (place, i) in exchanged.into_iter().enumerate() {
                code.lines.get_mut(&addresses[n + place]).unwrap().0 = i;
            }
        });
    }

    /// A take-over that leaves out one of its steps.
    fn faulty_take_over(left_out: u8, place: u8, l: &mut [u64; 6], r: (u64, u64), a: &mut Accounts) -> Step {
        if place == left_out { Step::Load(area(0), 5) } else { take_over(place, l, r, a) }
    }

    #[test]
    fn a_take_over_without_barrier_is_found() {
        let faulty: Script = |place, l, r, a| faulty_take_over(1, place, l, r, a);
        explore(&Code::shipped(), &taken(&[increment, faulty])).expect_err("found");
    }

    #[test]
    fn a_take_over_that_keeps_the_token_is_found() {
        let faulty: Script = |place, l, r, a| faulty_take_over(3, place, l, r, a);
        explore(&Code::shipped(), &taken(&[increment, faulty])).expect_err("found");
    }
}
