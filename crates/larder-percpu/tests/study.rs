//! The study of the kernel-cleared field: where the self-test lets it run, it loses nothing either.

// SAFETY, of every block: the word is the test's own, or the one of the attempt's CPU.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use larder_percpu::study::{INTERFERED, MISMATCH, Refused, Study};

fn study() -> Option<Study> {
    match Study::new() {
        Ok(study) => Some(study),
        Err(why) => {
            eprintln!("{why}");
            assert!(matches!(why, Refused::NoSequences(_) | Refused::NotClearedBySleep | Refused::NotClearedBySignal));
            None
        }
    }
}

/// How often the calling thread was taken off its CPU.
fn switches() -> i64 {
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nvcsw + usage.ru_nivcsw
    }
}

#[test]
fn an_attempt_commits_once_and_sleep_ends_it() {
    let Some(study) = study() else { return };
    let word = AtomicU64::new(1);
    // A tick may come between; without one the commit is made.
    let stored = (0..1000).any(|_| {
        let attempt = study.begin();
        // SAFETY: here and below: the word is this test's own.
        unsafe { attempt.store(word.as_ptr(), 2) == 0 }
    });
    assert!(stored && word.load(Ordering::Relaxed) == 2);
    let mismatched = (0..1000).any(|_| unsafe { study.begin().compare_store(word.as_ptr(), 7, 8) == MISMATCH });
    assert!(mismatched && word.load(Ordering::Relaxed) == 2);
    let stored = (0..1000).any(|_| unsafe { study.begin().compare_store(word.as_ptr(), 2, 3) == 0 });
    assert!(stored && word.load(Ordering::Relaxed) == 3);

    // A sleep that is over before the thread comes to it takes it off its CPU no more than any system call.
    loop {
        let attempt = study.begin();
        let before = switches();
        thread::sleep(std::time::Duration::from_micros(100));
        if switches() != before {
            assert!(!attempt.valid());
            assert_eq!(unsafe { attempt.store(word.as_ptr(), 9) }, INTERFERED);
            break;
        }
        attempt.end();
    }
    // An inner attempt ends the outer one.
    let outer = study.begin();
    study.begin().end();
    assert_eq!(unsafe { outer.store(word.as_ptr(), 9) }, INTERFERED);
    assert_eq!(word.load(Ordering::Relaxed), 3);
}

#[test]
fn no_increment_is_lost() {
    let Some(study) = study() else { return };
    #[repr(align(128))]
    struct Word(AtomicU64);
    let words: Vec<Word> = (0..larder_sys::cpus::possible()).map(|_| Word(AtomicU64::new(0))).collect();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for round in 0..1000 {
                    for attempt_number in 0_u64.. {
                        let attempt = study.begin();
                        let word = &words[attempt.cpu()].0;
                        let seen = word.load(Ordering::Relaxed);
                        if round % 64 == 0 && attempt_number == 0 {
                            // A system call that switches only sometimes. Only once: threads that all gave way in every
                            // attempt would fail each other's for ever.
                            thread::yield_now();
                        }
                        // SAFETY: the word of the attempt's CPU.
                        if unsafe { attempt.store(word.as_ptr(), seen + 1) } == 0 {
                            break;
                        }
                    }
                }
            });
        }
    });
    let sum: u64 = words.iter().map(|w| w.0.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, 6 * 1000);
}
