//! Many threads on few processors, each of which may be delayed at any instruction: a signal whose handler gives the
//! processor away a few times, or sleeps, arrives at random.
//!
//! The sleeps of one storm are counted. Without a limit, and with sleeps of 10 ms, the sender has sent every thread its next
//! signal before the handler of the last one returns: all 256 sleep, none executes an instruction of its own, and nothing ends
//! before the storm does (as soon as it stopped, every queue went on and ended: no wake was lost). And where threads are
//! served in an order, as with tickets, all of them wait for each that sleeps, so the limit bounds the time as well.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Once};
use std::thread;
use std::time::{Duration, Instant};

/// The handler of this one yields a few times.
const YIELD: libc::c_int = libc::SIGUSR2;
/// The handler of this one sleeps.
const SLEEP: libc::c_int = libc::SIGUSR1;

const YIELDS: usize = 5;
/// Longer than any thread looks before it falls asleep, so that who waits for the one that sleeps does so, too.
const SLEEP_NS: libc::c_long = 500_000;
/// Of all signals of a storm, at most so many sleep: a quarter of a second, if everybody waits for each of them.
const SLEEPS: usize = 500;
/// One signal in so many sleeps, as long as there are some left.
const SIGNALS_PER_SLEEP: u64 = 8;
/// How long idlers begin new rounds: much longer than all rounds take where nobody else wants the CPUs.
const IDLE: Duration = Duration::from_secs(30);

extern "C" fn delay(signal: libc::c_int) {
    // SAFETY: errno is the interrupted thread's, and is put back; both calls may be made from a handler.
    unsafe {
        let errno = *libc::__errno_location();
        if signal == SLEEP {
            let time = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
            libc::nanosleep(&time, std::ptr::null_mut());
        } else {
            for _ in 0..YIELDS {
                libc::sched_yield();
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// Runs `work(thread)` on `threads` threads, and delays them at random until all are done.
#[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
pub fn rages(threads: usize, work: impl Fn(usize) + Sync) {
    storm(threads, false, |thread, _| work(thread));
}

/// As [`rages`]; and one thread in 64 runs only when nobody else wants to (SCHED_IDLE), so that it is preempted with a lock in
/// its hands and while it waits for one. `work(thread, may_end)` asks between its rounds whether it is to end early: an idler is when
/// the others are done, or when it had [`IDLE`]. It may wait half a minute for a CPU for which other programs compete, and whoever
/// waits for its lock does, too.
#[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
pub fn rages_over_idlers(threads: usize, work: impl Fn(usize, &dyn Fn() -> bool) + Sync) {
    storm(threads, true, work);
}

fn storm(threads: usize, idlers: bool, work: impl Fn(usize, &dyn Fn() -> bool) + Sync) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler calls what a handler may call. Without SA_RESTART, a futex call returns EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = delay as extern "C" fn(libc::c_int) as usize;
            for signal in [YIELD, SLEEP] {
                assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
            }
        }
    });
    let ids: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
    let done = AtomicUsize::new(0);
    let is_idler = |thread: usize| idlers && thread % 64 == 3;
    let others = AtomicUsize::new((0..threads).filter(|&thread| !is_idler(thread)).count());
    let begun = Instant::now();
    let sender_is_gone = Barrier::new(threads + 1);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for (thread, id) in ids.iter().enumerate() {
            let (work, done, sender_is_gone, failed) = (&work, &done, &sender_is_gone, &failed);
            let (is_idler, others) = (is_idler(thread), &others);
            scope.spawn(move || {
                // SAFETY: always allowed.
                // ORDER test.ids: Relaxed; the id is the whole message.
                id.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
                if is_idler {
                    let priority = libc::sched_param { sched_priority: 0 };
                    // SAFETY: for the calling thread, which may always go down; where it may not, it stays as it was.
                    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &priority) };
                }
                // ORDER test.others: Relaxed; the number is the whole message.
                let may_end = || is_idler && (others.load(Ordering::Relaxed) == 0 || begun.elapsed() > IDLE);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(thread, &may_end)));
                others.fetch_sub(usize::from(!is_idler), Ordering::Relaxed);
                // ORDER test.ids: Relaxed; the join orders it.
                failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
                // A signal must not be sent to a thread that has ended.
                sender_is_gone.wait();
            });
        }
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut sleeps = SLEEPS;
        while done.load(Ordering::Relaxed) < threads {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let id = ids[(seed >> 33) as usize % threads].load(Ordering::Relaxed);
            if id != 0 {
                let sleeps_now = sleeps != 0 && seed.is_multiple_of(SIGNALS_PER_SLEEP);
                sleeps -= usize::from(sleeps_now);
                let signal = if sleeps_now { SLEEP } else { YIELD };
                // SAFETY: the thread waits for this one before it ends.
                unsafe { libc::pthread_kill(id as libc::pthread_t, signal) };
            }
            thread::yield_now();
        }
        sender_is_gone.wait();
    });
    assert!(!failed.load(Ordering::Relaxed), "a thread of the storm failed");
}
