//! Cycles that mark beside the program.

use larder_fixed::{concurrent, cycle};
use larder_sys::watch::Kind;
use larder_testkit::fuzz::{Plan, run};
use larder_testkit::{WITHOUT_SEQUENCES, asked_seed, in_child};

/// The kinds of watching that this machine offers; each has its tests.
fn offered(kind: Kind) -> bool {
    let offered = kind.is_offered();
    if !offered {
        eprintln!("SKIPPED: this machine does not offer {}", kind.name());
    }
    offered
}

/// One process after another, each with a seed of its own.
fn fuzz(name: &str, kind: Kind, environment: &[(&str, &str)], plan: impl Fn(u64) -> Plan) {
    const SEED: &str = "LARDER_TEST_SEED";
    if !offered(kind) {
        return;
    }
    if let Ok(seed) = std::env::var(SEED) {
        return in_child(name, environment, || {
            run(&Plan { beside: Some(kind), ..plan(seed.parse().unwrap()) });
            let [completed, _] = concurrent::completed();
            eprintln!("{completed} of {} cycles marked beside the program", cycle::number());
            assert!(completed > 2, "{completed} of {} cycles", cycle::number());
        });
    }
    for seed in [1, 2, 3].into_iter().chain(asked_seed()) {
        let seed = seed.to_string();
        let environment: Vec<_> = environment.iter().copied().chain([(SEED, seed.as_str())]).collect();
        in_child(name, &environment, || unreachable!("the child has a seed"));
    }
}

#[test]
fn one_thread_uffd() {
    fuzz("one_thread_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(10), ..Plan::new(1, seed, 6000) });
}

#[test]
fn eight_threads_uffd() {
    fuzz("eight_threads_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) });
}

#[test]
fn eight_threads_without_sequences_uffd() {
    fuzz("eight_threads_without_sequences_uffd", Kind::Uffd, &[WITHOUT_SEQUENCES], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(8, seed, 800)
    });
}

#[test]
fn four_threads_mprotect() {
    fuzz("four_threads_mprotect", Kind::Mprotect, &[], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(4, seed, 3000)
    });
}

#[test]
fn four_threads_soft_dirty() {
    fuzz("four_threads_soft_dirty", Kind::SoftDirty, &[], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(4, seed, 800)
    });
}
