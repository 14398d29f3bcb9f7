//! MutexBench: a critical section of a few steps on a shared word, and a non-critical section on a word of one's own.

use std::cell::UnsafeCell;
use std::time::Duration;

use larder_sync::clh::ClhLock;
use larder_sync::fair::{FairMutex, RawFifoLock, RawMcsLock};
use larder_sync::lock::Lock;
use larder_sync::mutex::Mutex;
use larder_sync::reciprocating::{RawReciprocating, ReciprocatingMutex};
use larder_sync::restrict::ConcurrencyRestricted;

use crate::Options;
use crate::contenders::Bare;
use crate::lifo::{E3, E5, E5B, E6, E7, E8, E9};
use crate::study::{Contender, LOG, Study};
use crate::window::{self, Outcome, step};

/// What one thread does: steps under the lock, and a number of steps drawn from below `outside` without it.
#[derive(Clone, Copy)]
pub struct Load {
    pub critical: u64,
    pub outside: u64,
    pub window: Duration,
}

struct Shared<L> {
    lock: L,
    section: UnsafeCell<Section>,
}

#[repr(align(128))]
struct Section {
    word: u64,
    log: Vec<u32>,
}

// SAFETY: the section is touched only under the lock.
unsafe impl<L: Sync> Sync for Shared<L> {}

fn measured<L: Bare>(threads: usize, load: Load, log: bool) -> (Outcome, Vec<u32>) {
    let log = Vec::with_capacity(if log { LOG } else { 0 });
    let shared = Shared { lock: L::fresh(), section: UnsafeCell::new(Section { word: 1, log }) };
    let outcome = window::run(threads, load.window, &|thread| {
        let shared = &shared;
        move |seed: &mut u64| {
            shared.lock.with(thread as u32, || {
                // SAFETY: the lock is held.
                let section = unsafe { &mut *shared.section.get() };
                for _ in 0..load.critical {
                    step(&mut section.word);
                }
                if section.log.len() < section.log.capacity() {
                    section.log.push(thread as u32);
                }
            });
            window::outside(seed, load.outside);
        }
    });
    (outcome, shared.section.into_inner().log)
}

/// A contender for every lock type, by name.
pub fn contender<'a, L: Bare>(name: &'static str, load: Load) -> Contender<'a> {
    // The log is kept in a window of its own, because writing it costs the owner something.
    let short = Load { window: load.window / 4, ..load };
    Contender {
        name,
        run: Box::new(move |threads| measured::<L>(threads, load, false).0),
        log: Some(Box::new(move |threads| measured::<L>(threads, short, true).1)),
    }
}

type Locked<R> = lock_api::Mutex<R, ()>;

pub fn studies(options: &Options) -> Vec<Study> {
    let study = |&outside: &u64| {
        let load = Load { critical: options.critical, outside, window: options.window() };
        let contenders = [
            contender::<std::sync::Mutex<()>>("std", load),
            contender::<parking_lot::Mutex<()>>("parking_lot", load),
            contender::<parking_lot::FairMutex<()>>("parking_lot FairMutex", load),
            contender::<Mutex<()>>("Mutex", load),
            contender::<FairMutex<()>>("FairMutex", load),
            contender::<ReciprocatingMutex<()>>("ReciprocatingMutex", load),
            contender::<Locked<RawFifoLock>>("FIFO with eviction", load),
            contender::<Locked<RawMcsLock>>("MCS", load),
            contender::<Locked<ConcurrencyRestricted<RawMcsLock>>>("restricted MCS", load),
            contender::<ClhLock>("CLH", load),
            contender::<Lock>("Lock", load),
        ];
        Study::new(
            format!("mutexes, {} steps inside, fewer than {outside} outside", options.critical),
            "How often a lock is taken and released by a second of processor time.",
            "acquisitions",
            options,
            &contenders,
        )
    };
    options.outside.iter().map(study).collect()
}

/// The LIFO locks, and what their starvation says about how many threads fit.
pub fn lifo_studies(options: &Options) -> Vec<Study> {
    let study = |&outside: &u64| {
        let load = Load { critical: options.critical, outside, window: options.window() };
        let contenders = [
            contender::<E3>("E3", load),
            contender::<E5>("E5", load),
            contender::<E5B>("E5B", load),
            contender::<E6>("E6", load),
            contender::<E7>("E7", load),
            contender::<E8>("E8", load),
            contender::<E9>("E9", load),
            contender::<Locked<RawReciprocating>>("Reciprocating", load),
            contender::<ReciprocatingMutex<()>>("ReciprocatingMutex", load),
        ];
        Study::new(
            format!("LIFO admission, {} steps inside, fewer than {outside} outside", options.critical),
            "Under LIFO admission the threads that fit over the lock share it, and the rest starve: see the admissions.",
            "acquisitions",
            options,
            &contenders,
        )
    };
    options.outside.iter().map(study).collect()
}
