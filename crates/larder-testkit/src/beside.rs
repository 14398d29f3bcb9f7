//! The whole suite with cycles beside the program: `LARDER_TEST_WATCH=uffd`, `soft-dirty` or `mprotect` has a cycle under way all the
//! time in every test whose cycles are verified.
//!
//! The next one is asked for as soon as one has ended. `cargo xtask test` runs the fixed heap's tests so, once for each kind that the
//! machine offers. With `LARDER_TEST_YOUNG=5` beside it, up to five of the cycles in a row are young. The kinds that need a program's own calls (`barrier`, `snapshot`) have tests of their own.

use larder_fixed::concurrent::{self, Way};
use larder_fixed::{cycle, generations, hooks};
use larder_sys::watch::Kind;

use crate::crowd;
use crate::verifier::Rules;

/// Environment variable that names the kind.
const VARIABLE: &str = "LARDER_TEST_WATCH";
/// Environment variable that lets so many cycles between two full ones be young.
const YOUNG: &str = "LARDER_TEST_YOUNG";

/// The kind that the environment asks for, if the machine offers it. An unknown one ends the test.
pub fn asked() -> Option<Kind> {
    let name = std::env::var(VARIABLE).ok()?;
    let kind = Kind::named(name.as_bytes()).unwrap_or_else(|| panic!("{VARIABLE}={name}: not a kind of watching"));
    offered(kind).then_some(kind)
}

/// Whether the machine offers a kind of watching; says so where a test is skipped because of it.
pub fn offered(kind: Kind) -> bool {
    let offered = kind.is_offered();
    if !offered {
        eprintln!("SKIPPED: this machine does not offer {}", kind.name());
    }
    offered
}

/// How many young cycles the environment asks for between two full ones.
fn asked_young() -> Option<usize> {
    let text = std::env::var(YOUNG).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{YOUNG}={text}: not a number")))
}

/// Whether cycles run beside the tests: then more of them run than a test asks for, and what died in one is kept by it.
pub fn is_asked() -> bool {
    asked().is_some()
}

/// Whether some of them are young: then what died stays for several.
pub fn is_young_asked() -> bool {
    is_asked() && asked_young().is_some()
}

/// Asserts that there were more cycles than that. One that runs beside the threads answers all that they ask for meanwhile, so it is only
/// certain then that there were some.
pub fn expect_cycles(least: u64) {
    let least = if is_asked() { least.min(1) } else { least };
    assert!(cycle::number() > least, "{} cycles", cycle::number());
}

/// Runs one cycle beside the program to its end; says whether it was a young one.
pub fn one_cycle() -> bool {
    let (young, done) = (generations::completed(), concurrent::completed()[0]);
    concurrent::ask();
    crowd::wait_until(|| !concurrent::finish_if_ready() && concurrent::completed()[0] > done);
    generations::completed() > young
}

unsafe extern "C" fn ask() {
    concurrent::ask();
}

/// What can be asked of the cycles of a test.
pub(crate) fn as_asked(rules: Rules) -> Rules {
    Rules {
        nothing_else_is_marked: rules.nothing_else_is_marked && !is_asked(),
        older_words_keep: rules.older_words_keep && (rules.nothing_dangles || !is_asked()),
        ..rules
    }
}

/// Turns it on where the environment asks for it. The heap is initialised, and the caller holds no lock.
pub(crate) fn turn_on() {
    // A test that has chosen by itself has its way.
    if let Some(kind) = asked()
        && !concurrent::is_on()
    {
        assert_eq!(concurrent::turn_on(Some(Way::Watch(kind))), Ok(Way::Watch(kind)));
        if let Some(most) = asked_young() {
            generations::set_young_cycles(most);
        }
        hooks::AFTER_CYCLE.set(Some(ask));
        concurrent::ask();
    }
}
