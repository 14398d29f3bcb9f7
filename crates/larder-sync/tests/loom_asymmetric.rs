//! Model of `asymmetric.dekker`, for the fallback in which both halves are full fences.
#![cfg(loom)]

mod model;

use larder_sync::asymmetric;
use larder_sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use std::sync::Arc;

fn dekker(light: fn(), heavy: fn()) {
    model::explore(4, move || {
        let blocked = Arc::new(AtomicBool::new(false));
        let stopping = Arc::new(AtomicBool::new(false));
        let mutator = {
            let (blocked, stopping) = (blocked.clone(), stopping.clone());
            thread::spawn(move || {
                // ORDER asymmetric.dekker: Relaxed; the halves do the work.
                blocked.store(true, Ordering::Relaxed);
                light();
                stopping.load(Ordering::Relaxed)
            })
        };
        // ORDER asymmetric.dekker: Relaxed; the halves do the work.
        stopping.store(true, Ordering::Relaxed);
        heavy();
        let saw_blocked = blocked.load(Ordering::Relaxed);
        let saw_stopping = mutator.join().unwrap();
        assert!(saw_blocked || saw_stopping, "both sides missed the other");
    });
}

#[test]
fn one_side_sees_the_other() {
    dekker(asymmetric::light, asymmetric::heavy);
}

#[test]
#[should_panic(expected = "both sides missed the other")]
fn without_the_light_half_both_miss() {
    dekker(|| (), asymmetric::heavy);
}

#[test]
#[should_panic(expected = "both sides missed the other")]
fn without_the_heavy_half_both_miss() {
    dekker(asymmetric::light, || ());
}
