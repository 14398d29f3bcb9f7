//! "Polite busy-waiting": how much threads that wait take from those that work beside them.
//!
//! As in the notes, one thread is bound to each processor; some of them work, the others wait. Where processors are threads of
//! one core, waiting politely leaves the core to its sibling.

use std::hint::black_box;
use std::mem;

use crate::Options;
use crate::machine;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome, step};

/// Steps that count as one operation.
const STEPS: u64 = 1000;

/// The processors that this process may run on.
fn processors() -> Vec<usize> {
    // SAFETY: an empty set is all zeroes; the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        if libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            window::stop("cannot read which processors may be used (sched_getaffinity)");
        }
        set
    };
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

fn bind(cpu: usize) {
    // SAFETY: an empty set is all zeroes, and the processor is one of those that the process may use.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set);
    }
}

fn measured(workers: usize, options: &Options, wait: fn(&mut u64)) -> Outcome {
    let processors = processors();
    let mut outcome = window::run(processors.len(), options.window(), &|thread| {
        bind(processors[thread]);
        move |seed: &mut u64| {
            if thread < workers {
                for _ in 0..STEPS {
                    step(seed);
                }
                black_box(*seed);
            } else {
                wait(seed);
            }
        }
    });
    outcome.counts.truncate(workers);
    // What counts is how far the workers come in a second, each of which has a processor.
    outcome.spent.cpu = outcome.wall;
    outcome
}

/// A way to wait: its name, and one turn of it.
type Way = (&'static str, fn(&mut u64));

/// The ways to wait, each for some microseconds at most. Waiting for a line by umwait or mwaitx is not among them: no
/// processor that could try them was at hand; the study says which of them this one shows.
const WAYS: &[Way] = &[
    ("asleep in poll", |_| {
        // SAFETY: no descriptors.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
    }),
    ("sched_yield", |_| std::thread::yield_now()),
    ("pause", |_| (0..64).for_each(|_| std::hint::spin_loop())),
    ("no-op", |_| {
        (0..1000).for_each(|step| {
            black_box(step);
        })
    }),
    ("work", |seed| {
        for _ in 0..STEPS {
            step(seed);
        }
        black_box(*seed);
    }),
];

pub fn studies(options: &Options) -> Vec<Study> {
    let contenders: Vec<Contender> = WAYS
        .iter()
        .map(|&(name, wait)| Contender {
            name,
            run: Box::new(move |workers| measured(workers, options, wait)),
            log: None,
        })
        .collect();
    let workers: Vec<usize> = (1..=processors().len()).collect();
    let mut study = Study::over(
        "polite waiting: one thread on each processor, some work and the others wait".to_owned(),
        "How far the workers come together in a second, by what the others do while they wait. Equal rates mean that \
         waiting takes nothing from a neighbour.",
        "workers",
        &workers,
        "thousand steps",
        options,
        &contenders,
    );
    let shown: Vec<&str> = [("umwait", "waitpkg"), ("mwaitx", "mwaitx")]
        .iter()
        .filter(|(_, flag)| machine::has(flag))
        .map(|&(name, _)| name)
        .collect();
    let note = match shown[..] {
        [] => "umwait and mwaitx have no rows: this processor, or its hypervisor, hides both.".to_owned(),
        _ => format!("{} has no row, although this processor shows it.", shown.join(" and ")),
    };
    study.says = format!("{} {note}", study.says).into();
    vec![study]
}
