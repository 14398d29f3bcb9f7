//! libgc's incremental mode: here cycles that mark beside the program (`larder_fixed::concurrent`).

use core::ffi::{CStr, c_int};

use larder_fixed::barrier::Algorithm;
use larder_fixed::concurrent::{self, Births, Refused, Way};
use larder_fixed::generations;
use larder_sys::env::{is_set, parse_size, var};
use larder_sys::say;
use larder_sys::watch::Kind;
use larder_units::Nanos;

use crate::data::{GC_find_leak, GC_full_freq, GC_time_limit, Int};
use crate::init::{GC_init, is_ready};
use crate::{log_line, settings};

/// libgc's `GC_TIME_UNLIMITED`, and its default.
const UNLIMITED_MS: usize = 999_999;
/// libgc's answers to `GC_incremental_protection_needs`.
const PROTECTS_POINTER_HEAP: c_int = 1;
const PROTECTS_POINTER_FREE_HEAP: c_int = 2;
const PROTECTS_NONE: c_int = 0;

/// `LARDER_CONCURRENT=0` or `GC_DISABLE_INCREMENTAL`: the client's wish does not count.
static FORBIDDEN: Int = Int::new(0);
/// Pages are protected by `mprotect`.
static PROTECTS: Int = Int::new(0);
/// `GC_full_freq` was set, and is to be honoured.
static CHOSEN: Int = Int::new(0);
/// `LARDER_YOUNG` was read.
static BY_USER: Int = Int::new(0);
/// A refusal was said.
static SAID: Int = Int::new(0);

/// Does what the environment asks for. The heap is there.
pub fn read_environment() {
    if let Some(text) = var(c"LARDER_PAUSE") {
        match parse_time(text) {
            Some(goal) => concurrent::set_pause_goal(goal),
            None => say!("LARDER_PAUSE is neither like 500us nor like 2ms, and is ignored"),
        }
    } else {
        use_limit();
    }
    match var(c"LARDER_BORN").map(CStr::to_bytes) {
        None | Some(b"late") => {}
        Some(b"marked") => concurrent::set_births(Births::Marked),
        Some(b"unmarked") => concurrent::set_births(Births::Unmarked),
        Some(_) => say!("LARDER_BORN is not late, marked or unmarked, and is ignored"),
    }
    if let Some(text) = var(c"LARDER_MARKERS_BESIDE") {
        match parse_size(text).filter(|n| (1..=16).contains(n)) {
            Some(markers) => concurrent::set_markers(markers),
            None => say!("LARDER_MARKERS_BESIDE is not a number from 1 to 16, and is ignored"),
        }
    }
    if let Some(text) = var(c"LARDER_YOUNG") {
        match parse_size(text) {
            Some(most) => {
                BY_USER.set(1);
                generations::set_young_cycles(most);
            }
            None => say!("LARDER_YOUNG is not a number, and is ignored"),
        }
    }
    use_frequency();
    let wish = var(c"LARDER_CONCURRENT").map(CStr::to_bytes);
    if is_set(c"GC_DISABLE_INCREMENTAL") || wish == Some(b"0") {
        FORBIDDEN.set(1);
        return;
    }
    match wish {
        None if !is_set(c"GC_ENABLE_INCREMENTAL") => {}
        None | Some(b"1") => _ = turn_on(),
        Some(_) => say!("LARDER_CONCURRENT is neither 0 nor 1, and is ignored"),
    }
}

/// A number with the unit ms or us.
fn parse_time(text: &CStr) -> Option<Nanos> {
    let text = text.to_bytes();
    let (digits, unit) = match (text.strip_suffix(b"ms"), text.strip_suffix(b"us")) {
        (Some(digits), _) => (digits, 1_000_000),
        (_, Some(digits)) => (digits, 1000),
        _ => return None,
    };
    let number = core::str::from_utf8(digits).ok()?.parse::<u64>().ok()?;
    number.checked_mul(unit).filter(|&ns| ns > 0).map(Nanos)
}

/// The way that `LARDER_WATCH` names; the outer `None` where it turns watching off.
fn wanted_way() -> Option<Option<Way>> {
    match var(c"LARDER_WATCH").map(CStr::to_bytes) {
        None => Some(None),
        Some(b"none") => None,
        Some(b"barrier") => Some(Some(Way::Barrier(Algorithm::IncrementalUpdate))),
        Some(b"snapshot") => Some(Some(Way::Barrier(Algorithm::Snapshot))),
        Some(name) => {
            let kind = Kind::named(name);
            if kind.is_none() {
                say!("LARDER_WATCH is none of uffd, soft-dirty, mprotect, barrier, snapshot and none, and is ignored");
            }
            Some(kind.map(Way::Watch))
        }
    }
}

/// The client has set how many young cycles come between two full ones.
pub fn frequency_is_chosen() {
    CHOSEN.set(1);
    // Before there is a heap it counts once the environment is read.
    if is_ready() {
        use_frequency();
    }
}

/// Has `GC_full_freq` honoured, where somebody has set it and nothing goes first. The heap is there.
fn use_frequency() {
    if CHOSEN.is_set() && !BY_USER.is_set() {
        generations::set_young_cycles(usize::try_from(GC_full_freq.get()).unwrap_or(0));
    }
}

/// Makes cycles concurrent, or says once why they are not.
fn turn_on() -> bool {
    if concurrent::is_on() {
        return true;
    }
    let refused = match wanted_way() {
        None => return false,
        Some(way) => match concurrent::turn_on(way) {
            Ok(way) => {
                PROTECTS.set(c_int::from(way == Way::Watch(Kind::Mprotect)));
                if BY_USER.is_set() && !concurrent::watches_between_cycles() {
                    say!("LARDER_YOUNG needs LARDER_WATCH=uffd or mprotect, and is ignored: every cycle is full");
                }
                return true;
            }
            Err(refused) => refused,
        },
    };
    if !SAID.is_set() {
        SAID.set(1);
        match refused {
            Refused::NoKind => say!(
                "cycles stop the program: nothing here watches its writes (userfaultfd of Linux 6.7, or soft-dirty bits); see larder doctor"
            ),
            Refused::NotOffered(kind) => say!(
                "cycles stop the program: LARDER_WATCH asks for {}, which this machine does not offer; see larder doctor",
                kind.name()
            ),
            Refused::NoMemory => say!("cycles stop the program: there is no address space for the barrier's cards"),
        }
    }
    false
}

/// The client has set the time limit: from here on it is what pauses should last at most.
pub fn goal_is_set() {
    // As in `frequency_is_chosen`.
    if is_ready() {
        use_limit();
    }
}

/// Makes the time limit the pause that is wanted, where there is one. The heap is there.
fn use_limit() {
    let (limit, rest) = (GC_time_limit.get(), settings::TIME_LIMIT_NS.get());
    if limit != UNLIMITED_MS {
        concurrent::set_pause_goal(Nanos((limit as u64).saturating_mul(1_000_000).saturating_add(rest as u64)));
    }
}

/// Tells in the log what is wanted of cycles beside the program.
pub fn print() {
    if concurrent::is_on() {
        let (goal, young) = (concurrent::pause_goal().0 / 1000, generations::young_cycles());
        log_line!("Incremental mode: pauses of {goal} us at most are wanted, {young} young cycles between full ones");
    }
}

/// Makes cycles mark beside the program, where the machine offers a way to watch its writes. Otherwise, and where
/// `GC_DISABLE_INCREMENTAL` or `LARDER_CONCURRENT=0` forbids it, or leaks are looked for, cycles stay what they are.
#[unsafe(no_mangle)]
pub extern "C" fn GC_enable_incremental() {
    GC_init();
    if !FORBIDDEN.is_set() && !GC_find_leak.is_set() {
        turn_on();
    }
}

/// Whether cycles mark beside the program.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_incremental_mode() -> c_int {
    c_int::from(concurrent::is_on())
}

/// Which memory may be write-protected so that a system call that writes there fails: none, unless `LARDER_WATCH` asks
/// for `mprotect`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_incremental_protection_needs() -> c_int {
    if PROTECTS.is_set() { PROTECTS_POINTER_HEAP | PROTECTS_POINTER_FREE_HEAP } else { PROTECTS_NONE }
}

/// Begins a cycle that marks beside the program. Nothing, where cycles do not.
#[unsafe(no_mangle)]
pub extern "C" fn GC_start_incremental_collection() {
    GC_init();
    concurrent::ask();
}

/// Finishes a cycle whose marking has ended; returns 1 while one marks, 0 where there is nothing left to do.
#[unsafe(no_mangle)]
pub extern "C" fn GC_collect_a_little() -> c_int {
    GC_init();
    c_int::from(concurrent::finish_if_ready())
}
