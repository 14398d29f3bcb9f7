//! Model of `hazard.dekker`: what a hazard names is not freed, what nobody names is; and mutants.
#![cfg(loom)]

mod model;

use larder_sync::atomic::{AtomicPtr, Ordering};
use larder_sync::hazard::Domain;
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Object {
    /// 7 while it may be read.
    content: UnsafeCell<usize>,
}

thread_local! {
    /// What was freed in this execution. It stays readable, so that a reader that comes too late is found out by loom and by
    /// what it reads. loom runs all threads of a model on one.
    static FREED: std::cell::RefCell<Vec<Box<Object>>> = const { std::cell::RefCell::new(Vec::new()) };
}

unsafe fn free(object: *mut ()) {
    if std::thread::panicking() {
        // The model has failed, and loom runs no more.
        return;
    }
    // SAFETY: the model retires `Object`s made by `Box`, once.
    let object = unsafe { Box::from_raw(object.cast::<Object>()) };
    // SAFETY: nobody reads it any more; loom checks that.
    object.content.with_mut(|content| unsafe { *content = 0 });
    FREED.with_borrow_mut(|freed| freed.push(object));
}

fn object() -> *mut Object {
    Box::into_raw(Box::new(Object { content: UnsafeCell::new(7) }))
}

fn one_reads_what_another_replaces() {
    model::explore(3, || {
        FREED.with_borrow_mut(Vec::clear);
        let shared = Arc::new((Domain::new(), AtomicPtr::new(object())));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut hazard = shared.0.hazard();
                let object = hazard.protect(&shared.1);
                // SAFETY: protected.
                let content = unsafe { (*object).content.with(|content| *content) };
                assert_eq!(content, 7, "it was freed under its reader");
            })
        };
        let mut bag = shared.0.bag();
        // ORDER hazard.dekker: AcqRel, with the load in `protect`.
        let old = shared.1.swap(object(), Ordering::AcqRel);
        // SAFETY: replaced, and retired once.
        unsafe { bag.retire(old, free) };
        reader.join().unwrap();
        bag.reclaim();
        assert!(bag.is_empty(), "nobody names it any more");
        // SAFETY: nobody reads any more.
        unsafe { free(shared.1.load(Ordering::Relaxed).cast()) };
    });
}

#[test]
fn what_is_read_is_not_freed() {
    one_reads_what_another_replaces();
}

macro_rules! mutants {
    ($($name:ident: $step:literal => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, one_reads_what_another_replaces);
        }
    )* };
}

mutants! {
    without_the_light_half: "hazard: the light half" => "Causality violation";
    without_the_heavy_half: "hazard: the heavy half" => "Causality violation";
    cleared_relaxed: "hazard.dekker: Release" => "Causality violation";
    looked_at_relaxed: "hazard.dekker: Acquire" => "Causality violation";
}
