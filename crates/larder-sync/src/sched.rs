//! Whether another thread runs at this moment: hints for choosing who gets a lock next.
//!
//! Linux 6.18 publishes no such flag. What it does publish for each thread is the processor it runs on, in the area that
//! the C library registers for restartable sequences, and it is up to date whenever the thread executes an instruction. So
//! if another thread's word names the processor on which this thread runs, that thread does not run. If it names
//! another processor nothing follows; but threads that look leave their name on the processor's slot as they look, and a
//! name that has been replaced belongs to a thread that has been displaced.
//!
//! Where the C library registers no such area, the thread's processor time says it: who runs has had more of it at a second
//! look. That answers both ways, and costs two system calls (0.2 to 0.4 us each), a hundred times as much as the comparison; so it
//! is the fallback, and does not confirm what the comparison leaves open.
//!
//! | oracle | asks | says "no" wrongly | does not notice | a look costs |
//! |---|---|---|---|---|
//! | [`Ignorant`] | nothing | never | everything | nothing |
//! | `ByProcessor` | which processor it is on | never | who lost another processor, until somebody else looks there | a load from its line |
//! | `ByCpuClock` | its processor time, twice | in a guest, after the host took time | who stops between the two | two system calls |
//!
//! Every answer is old at once, and inside a virtual machine it knows nothing of the host. Use it to choose, never to be
//! safe.

#[cfg(all(feature = "std", not(loom)))]
use crate::atomic::Ordering;

/// What is known about another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// It does not run, or did not a moment ago.
    No,
    /// Nothing speaks against it.
    Perhaps,
}

/// Says whether a thread that waits for a lock runs.
pub trait RunningOracle {
    /// How long a waiter whose patience is over gives its processor away before it sleeps, in nanoseconds. While it does, it
    /// is passed over, which costs nothing; once it sleeps, the lock waits for it. A queue in which all sleep stays so:
    /// each hand-over is a wake, and whoever comes back has lost patience before its turn. A line before a lock
    /// [in turns](crate::turns) does not yield: there a wake is one of many acquisitions.
    const YIELDING_NS: u64 = 0;

    /// What the calling thread publishes when it begins to wait.
    fn mark() -> usize;

    /// The calling thread, whose mark this is, looks.
    fn looks(mark: usize);

    /// Whether the thread that published `mark` runs.
    ///
    /// # Safety
    /// That thread waits, so it has not ended.
    unsafe fn is_running(mark: usize) -> Running;
}

/// Knows nothing: everybody runs, perhaps.
pub struct Ignorant;

impl RunningOracle for Ignorant {
    fn mark() -> usize {
        0
    }
    #[inline]
    fn looks(_mark: usize) {}
    unsafe fn is_running(_mark: usize) -> Running {
        Running::Perhaps
    }
}

/// Compares processors, by the words that the kernel keeps for restartable sequences. Without them it is [`ByCpuClock`].
#[cfg(all(feature = "std", not(loom)))]
pub struct ByProcessor;

/// Asks the kernel twice how much processor time the thread has had.
#[cfg(all(feature = "std", not(loom)))]
pub struct ByCpuClock;

#[cfg(all(feature = "std", not(loom)))]
mod by_cpu_clock {
    use super::{ByCpuClock, Running, RunningOracle};
    use crate::errno::keep_errno;

    /// The processor time of the thread behind a mark, in nanoseconds; nothing where the kernel does not say.
    fn time_of(mark: usize) -> Option<i64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a writable timespec; a clock that does not exist is refused.
        let result = keep_errno(|| unsafe { libc::clock_gettime(mark as u32 as libc::clockid_t, &mut time).into() });
        result.is_ok().then(|| time.tv_sec * 1_000_000_000 + time.tv_nsec)
    }

    impl RunningOracle for ByCpuClock {
        const YIELDING_NS: u64 = super::YIELDING_NS;

        /// The thread's clock, which is negative, so that no mark is 0.
        fn mark() -> usize {
            let mut clock: libc::clockid_t = 0;
            // SAFETY: the calling thread, and a writable clock number.
            let known = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0;
            if known { clock as u32 as usize } else { 0 }
        }

        #[inline]
        fn looks(_mark: usize) {}

        unsafe fn is_running(mark: usize) -> Running {
            if mark == 0 {
                return Running::Perhaps;
            }
            match (time_of(mark), time_of(mark)) {
                (Some(before), Some(after)) if before == after => Running::No,
                _ => Running::Perhaps,
            }
        }
    }
}

/// How long waiters of either oracle give their processor away: some turns of the kernel's scheduler.
#[cfg(all(feature = "std", not(loom)))]
const YIELDING_NS: u64 = 20_000_000;

#[cfg(all(feature = "std", not(loom)))]
mod by_processor {
    use super::{ByCpuClock, ByProcessor, Ordering, Running, RunningOracle};
    use crate::line::Line;
    use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize};
    use larder_sys::rseq_area;
    use larder_sys::thread::thread_pointer;

    /// Slots; processors beyond share them, which makes the hint worse and nothing else.
    const SLOTS: usize = 256;
    /// Who looked last on each processor. Sync: hints, Relaxed.
    static LAST: [Line<AtomicUsize>; SLOTS] = [const { Line(AtomicUsize::new(0)) }; SLOTS];

    const UNKNOWN: isize = isize::MIN;
    const NONE: isize = isize::MAX;
    /// Offset of `cpu_id` from the thread pointer. Sync: every thread finds the same, Relaxed.
    static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

    #[cold]
    fn find() -> isize {
        let offset = rseq_area::find().map_or(NONE, |area| area.offset + rseq_area::CPU_ID);
        // ORDER sched.hint: Relaxed; the number is the whole message.
        OFFSET.store(offset, Ordering::Relaxed);
        offset
    }

    fn own_word() -> Option<*mut u32> {
        // ORDER sched.hint: Relaxed; as above.
        let offset = match OFFSET.load(Ordering::Relaxed) {
            UNKNOWN => find(),
            known => known,
        };
        (offset != NONE).then(|| thread_pointer().wrapping_offset(offset).cast())
    }

    /// # Safety
    /// The word belongs to a thread that has not ended.
    unsafe fn read(word: *mut u32) -> u32 {
        // SAFETY: aligned and alive; the kernel writes it by aligned stores, others only read.
        // ORDER sched.hint: Relaxed; a hint.
        unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed)
    }

    impl RunningOracle for ByProcessor {
        const YIELDING_NS: u64 = super::YIELDING_NS;

        fn mark() -> usize {
            let Some(word) = own_word() else { return ByCpuClock::mark() };
            let mark = word.expose_provenance();
            Self::looks(mark);
            mark
        }

        #[inline]
        fn looks(mark: usize) {
            let Some(word) = own_word() else { return };
            // SAFETY: the calling thread's own word.
            let cpu = unsafe { read(word) };
            let last = &LAST[cpu as usize % SLOTS];
            // ORDER sched.hint: Relaxed, both; a hint. The load keeps a line that has the name already from being written.
            if last.load(Ordering::Relaxed) != mark {
                last.store(mark, Ordering::Relaxed);
            }
        }

        unsafe fn is_running(mark: usize) -> Running {
            let Some(own) = own_word() else {
                // SAFETY: the caller's promise; the mark is a clock, because no thread of this process has a word.
                return unsafe { ByCpuClock::is_running(mark) };
            };
            // SAFETY: this thread's word; and, by the caller's promise, a living thread's.
            let (before, its, after) =
                unsafe { (read(own), read(core::ptr::with_exposed_provenance_mut(mark)), read(own)) };
            // ORDER sched.hint: Relaxed; a hint.
            let displaced = LAST[its as usize % SLOTS].load(Ordering::Relaxed) != mark;
            if (before == after && its == before) || displaced { Running::No } else { Running::Perhaps }
        }
    }
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::{ByCpuClock, ByProcessor, Running, RunningOracle};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    /// Whether the calling thread is found to run. In a guest, time that the host had for itself is taken off the thread's, which then stands
    /// still for a while.
    fn finds_itself<O: RunningOracle>() -> bool {
        // SAFETY: the calling thread has not ended.
        (0..1_000_000).any(|_| unsafe { O::is_running(O::mark()) } == Running::Perhaps)
    }

    #[test]
    fn who_asks_runs() {
        assert!(finds_itself::<ByCpuClock>());
    }

    #[test]
    fn who_sleeps_does_not_run() {
        let (marks, mark) = channel();
        let (end, ended) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                marks.send(ByCpuClock::mark()).unwrap();
                ended.recv().unwrap_err();
            });
            let mark = mark.recv().unwrap();
            // It may take a moment until it sleeps.
            let sleeps = (0..1_000_000).any(|_| {
                std::thread::yield_now();
                // SAFETY: it has not ended.
                unsafe { ByCpuClock::is_running(mark) == Running::No }
            });
            drop(end);
            assert!(sleeps, "a thread that waits was taken for a running one");
        });
    }

    /// In a process of its own, because the C library registers at its start.
    #[test]
    fn without_the_areas_of_sequences_the_clock_is_asked() {
        const CHILD: &str = "LARDER_TEST_WITHOUT_SEQUENCES";
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(ByProcessor::mark(), ByCpuClock::mark());
            assert!(finds_itself::<ByProcessor>());
            return;
        }
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sched::tests::without_the_areas_of_sequences_the_clock_is_asked"])
            .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "see its message above");
    }
}
