//! Sequences with a fault: each must lead to an end that breaks the rules. Those that are inlined, too, get it in both forms.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::machine::fault;
use super::*;

/// A change of the sequence that must be found by exploring `setting`: in the function, and in the copy for inlining.
pub fn found(setting: &Setting<'_>, name: &str, change: impl Fn(&mut Code, &str)) {
    let has_copy = copies::OF_FUNCTIONS.iter().any(|(copied, _)| *copied == name);
    let of_heap = copies::OF_THE_HEAP_TO_CALL.iter().any(|(of_heap, _)| *of_heap == name);
    let in_c = copies::IN_C.iter().any(|(copied, _)| copied.strip_suffix(" in C") == Some(name));
    let all = [
        (!of_heap).then(Code::shipped),
        has_copy.then(Code::inlined),
        in_c.then(Code::inlined_in_c),
        of_heap.then(Code::of_the_heap),
    ];
    for mut code in all.into_iter().flatten() {
        assert_eq!(fault(&code, setting), None, "the shipped code has no fault");
        change(&mut code, name);
        let error = fault(&code, setting).expect("the fault must be found");
        let what = error.lines().next().unwrap_or_default();
        eprintln!("found in {name}: {what}");
        // By what it loses or doubles, not because the changed code makes no sense.
        assert!(what.contains("added") || what.contains("put"), "{what}");
    }
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
pub fn unchecked(code: &mut Code, name: &str, is_comparison: impl Fn(&Instruction) -> bool) {
    let addresses = code.addresses(name);
    let n = addresses
        .iter()
        .position(|ip| code.lines[ip].0.is_some_and(|i| is_comparison(&i)))
        .expect("the comparison is there");
    for ip in &addresses[n..n + 2] {
        code.lines.get_mut(ip).unwrap().0 = None;
    }
}

fn is_comparison(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Cmp
}

fn is_on_thread(i: &Instruction) -> bool {
    i.memory_segment() == Register::FS
}

/// The first comparison of a word of the area with a register.
fn is_token(i: &Instruction) -> bool {
    is_comparison(i) && i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register && !is_on_thread(i)
}

fn is_closed(i: &Instruction) -> bool {
    is_comparison(i) && i.op0_kind() == OpKind::Memory && i.op1_kind() != OpKind::Register && !is_on_thread(i)
}

/// Of a commit: in the function both are in registers, in the copy the present index is compared where it is.
fn is_index(i: &Instruction) -> bool {
    let called = i.op0_register() == Register::R10D && i.op1_register() == Register::ESI;
    is_comparison(i) && (called || is_on_thread(i) && i.op1_kind() == OpKind::Register)
}

pub fn one_short(code: &mut Code, name: &str) {
    change_length(code, name, |length, commit, behind| length - (behind - commit));
}

pub fn one_long(code: &mut Code, name: &str) {
    let (_, behind) = last_of_range(code, name);
    let more = code.lines[&behind].1 - behind;
    change_length(code, name, |length, _, _| length + more);
}

/// An abort goes on where the index is read.
pub fn not_armed(code: &mut Code, name: &str) {
    let addresses = code.addresses(name);
    // Behind the test of the registration, where there is one.
    let tests = code.lines[&addresses[0]].0.is_some_and(|i| is_comparison(&i) && is_on_thread(&i));
    let range = code.range_of(name);
    code.ranges.get_mut(&range).unwrap().2 = addresses[if tests { 2 } else { 0 }];
}

/// The comparison of the next frontier with the limit.
pub fn is_bound(i: &Instruction) -> bool {
    is_comparison(i)
        && i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Memory
        && i.memory_displacement64() == 8
}

/// Where the sequence's descriptor is named.
fn arming(code: &Code, name: &str) -> u64 {
    let range = code.range_of(name);
    let names = |i: &Instruction| i.mnemonic() == Mnemonic::Lea && i.ip_rel_memory_address() == range;
    let named =
        code.lines.iter().find(|(_, line)| line.0.as_ref().is_some_and(|i| i.is_ip_rel_memory_operand() && names(i)));
    *named.expect("a sequence is armed").0
}

#[test]
fn a_range_one_instruction_short_is_found() {
    for name in ["commit_store_64", "begin"] {
        found(&transactions(&[increment, increment], 1, 3, false), name, one_short);
    }
    let pairs: [Script; 2] = [pair::<0>, pair::<0x40>];
    found(&transactions(&pairs, 1, 3, false), "commit_pair", one_short);
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
        found(&shots(&[script, script], 1, 3, &memory), name, one_short);
    }
}

#[test]
fn a_range_one_instruction_long_is_found() {
    found(&transactions(&[increment, increment], 1, 3, false), "commit_store_64", one_long);
    let memory = filled();
    for (name, script) in [("list_pop", one_shot::list_pop as Script), ("add", one_shot::add), ("bump", one_shot::bump)]
    {
        found(&shots(&[script, script], 1, 2, &memory), name, one_long);
    }
}

#[test]
fn a_commit_that_is_not_last_is_found() {
    // The store comes before the last comparison and its branch.
    found(&transactions(&[increment, take_over], 2, 3, false), "commit_store_64", |code, name| {
        let addresses = code.addresses(name);
        let n = addresses.len();
        let lines: Vec<_> = addresses[n - 4..n - 1].iter().map(|ip| code.lines[ip].0).collect();
        for (ip, line) in addresses[n - 4..n - 1].iter().zip([lines[2], lines[0], lines[1]]) {
            code.lines.get_mut(ip).unwrap().0 = line;
        }
    });
}

#[test]
fn an_abort_that_does_not_arm_again_is_found() {
    found(&transactions(&[increment, increment], 1, 3, false), "commit_store_64", not_armed);
    let memory = filled();
    found(&shots(&[one_shot::list_pop, one_shot::list_pop], 1, 3, &memory), "list_pop", not_armed);
}

/// Begin reads the index first and arms then: what is between is not protected, and an abort does not read it again.
#[test]
fn arming_after_the_index_is_read_is_found() {
    found(&transactions(&[increment, increment], 2, 3, false), "begin", |code, name| {
        let range = code.range_of(name);
        let (start, length, _) = code.ranges[&range];
        // Places: those that arm, which end with the store | cmp, ja, (mov,) mov index. New order: (mov,) mov index, those
        // that arm | cmp, ja.
        let mut places = vec![arming(code, name)];
        let reads_index =
            |i: &Instruction| i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Register && is_on_thread(i);
        while !code.lines[places.last().unwrap()].0.is_some_and(|i| reads_index(&i)) {
            places.push(code.lines[places.last().unwrap()].1);
        }
        let lines: Vec<_> = places.iter().map(|ip| code.lines[ip].0).collect();
        let arms = places.iter().position(|ip| *ip == start).expect("the range begins behind what arms");
        let (tests, reads) = (arms..arms + 2, arms + 2..places.len());
        let index = reads.len();
        for (ip, n) in places.iter().zip(reads.chain(0..arms).chain(tests)) {
            code.lines.get_mut(ip).unwrap().0 = lines[n];
        }
        let armed = places[index + arms];
        code.ranges.insert(range, (armed, start + length - armed, places[index]));
    });
}

#[test]
fn a_token_that_is_not_checked_is_found() {
    let without = |code: &mut Code, name: &str| unchecked(code, name, is_token);
    found(&transactions(&[increment, increment], 1, 3, false), "commit_store_64", without);
    found(&transactions(&[chain, chain], 1, 3, false), "commit_compare_64", without);
    found(&transactions(&[small, small], 1, 3, false), "commit_store_32", without);
    let pairs: [Script; 2] = [pair::<0>, pair::<0x40>];
    found(&transactions(&pairs, 1, 3, false), "commit_pair", without);
}

/// The commit trusts the index of the transaction and does not read the present one.
#[test]
fn an_index_that_is_not_read_again_is_found() {
    // Somebody has begun on index 1 before, so that the two tokens can be alike.
    let setting = Setting { memory: &[(AREAS + STRIDE, 1)], ..transactions(&[increment, increment], 2, 3, false) };
    found(&setting, "commit_store_64", |code, name| unchecked(code, name, is_index));
}

/// The interleaving for which begin must be a sequence: the thread reads its index, moves, stores its token beside a
/// commit that is under way on the old CPU, reads what that is about to change, comes back, and commits.
#[test]
fn begin_as_a_plain_store_is_found() {
    for by_id in [false, true] {
        found(&transactions(&[increment, increment], 2, 3, by_id), "begin", |code, name| {
            let range = code.range_of(name);
            code.ranges.get_mut(&range).unwrap().1 = 0;
        });
    }
}

#[test]
fn a_closed_word_that_is_not_tested_is_found() {
    let without = |code: &mut Code, name: &str| unchecked(code, name, is_closed);
    found(&taken(&[increment, take_over]), "commit_store_64", without);
    found(&taken(&[increment, take_over]), "begin", without);
    let memory = filled();
    for (name, script) in [
        ("add", one_shot::add as Script),
        ("list_pop", one_shot::list_pop),
        ("bump", one_shot::bump),
        ("stack_pop", one_shot::stack_pop),
        ("level_add", one_shot::level_add),
    ] {
        found(&shots(&[script, one_shot::take_all], 2, 2, &memory), name, without);
    }
}

/// The two comparisons of the commit in the other order: a whole take-over fits between them.
#[test]
fn a_token_that_is_tested_before_the_closed_word_is_found() {
    found(&transactions(&[increment, increment, take_over], 2, 0, false), "commit_store_64", |code, name| {
        let addresses = code.addresses(name);
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
    fault(&Code::shipped(), &taken(&[increment, faulty])).expect("found");
}

#[test]
fn a_take_over_that_keeps_the_token_is_found() {
    let faulty: Script = |place, l, r, a| faulty_take_over(3, place, l, r, a);
    fault(&Code::shipped(), &taken(&[increment, faulty])).expect("found");
}
