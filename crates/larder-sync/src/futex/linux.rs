//! The futex of the kernel, private to the process.

use crate::atomic::AtomicU32;
use crate::errno::keep_errno;
use core::ops::Deref;
use core::ptr;

/// A word that threads can sleep on. It is the word itself and nothing more: four bytes.
#[repr(transparent)]
pub(crate) struct Word {
    /// Sync: by the protocol of whoever owns the word.
    value: AtomicU32,
}

const _: () = assert!(size_of::<Word>() == 4);

impl Deref for Word {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

/// The set in which those wait who sleep on this value: one of as many as there are bits.
const fn set_of(value: u32) -> u32 {
    1 << (value % u32::BITS)
}

/// A moment of `CLOCK_MONOTONIC` at which a wait gives up.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(libc::timespec);

impl Deadline {
    /// The moment `nanos` nanoseconds from now.
    pub(crate) fn after(nanos: u64) -> Self {
        const NANOS_PER_SECOND: u64 = 1_000_000_000;
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a writable timespec. The call cannot fail for this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        let nanos_past = now.tv_nsec as u64 + nanos % NANOS_PER_SECOND;
        let seconds = nanos / NANOS_PER_SECOND + nanos_past / NANOS_PER_SECOND;
        // At most 2^64 ns, 585 years, are added, so the sum stays far below the last second of the clock.
        now.tv_sec += seconds as libc::time_t;
        now.tv_nsec = (nanos_past % NANOS_PER_SECOND) as libc::c_long;
        Self(now)
    }
}

impl Word {
    /// A word with this value and no sleepers.
    pub(crate) const fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value) }
    }

    /// Sleeps once if the word still is `expected`; returns after a wake, a signal, or for no reason.
    pub(crate) fn wait(&self, expected: u32) {
        self.wait_until(expected, None);
    }

    /// Sleeps once as [`Word::wait`] does, at most until `deadline`; returns true when that has passed.
    pub(crate) fn wait_before(&self, expected: u32, deadline: Deadline) -> bool {
        self.wait_until(expected, Some(deadline))
    }

    fn wait_until(&self, expected: u32, deadline: Option<Deadline>) -> bool {
        let timeout = deadline.as_ref().map_or(ptr::null(), |deadline| &raw const deadline.0);
        let result = keep_errno(|| {
            // SAFETY: the address is that of a live, aligned word; `timeout` is null or points to a timespec that lives
            // across the call. FUTEX_WAIT_BITSET takes the timeout as a moment, so a retry after a signal does not
            // start it anew.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.value.as_ptr(),
                    libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
                    expected,
                    timeout,
                    ptr::null::<u32>(),
                    set_of(expected),
                )
            }
        });
        // Anything else would make the caller's loop spin for ever without a word.
        assert!(
            matches!(result, Ok(_) | Err(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)),
            "larder: FUTEX_WAIT_BITSET failed with an error that no wait can have"
        );
        result == Err(libc::ETIMEDOUT)
    }

    /// Wakes at most `sleepers` of those that sleep on this word, longest first.
    ///
    /// The memory may have been given back by a thread that saw the value stored before this call; the kernel then
    /// finds nobody, or wakes a stranger, who looks at his word again.
    pub(crate) fn wake(&self, sleepers: u32) {
        self.waker().wake(sleepers);
    }

    /// As [`Word::wake`], but first those who fell asleep on another value than `latest`; others only where these are fewer. The kernel wakes threads of
    /// real-time priorities first, however late they came, and one that sleeps on the latest value goes back to sleep.
    pub(crate) fn wake_earlier(&self, sleepers: u32, latest: u32) {
        let woken = if sleepers == u32::MAX { 0 } else { self.waker().wake_of(sleepers, !set_of(latest)) };
        if woken < sleepers {
            self.wake(sleepers - woken);
        }
    }

    /// What wakes sleepers on this word even when the word itself may be gone: made before the store that lets its
    /// owner go.
    #[inline]
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.value.as_ptr())
    }
}

/// Wakes sleepers on a word that may be gone.
pub(crate) struct Waker(*mut u32);

impl Waker {
    /// As [`Word::wake`].
    pub(crate) fn wake(self, sleepers: u32) {
        self.wake_of(sleepers, libc::FUTEX_BITSET_MATCH_ANY as u32);
    }

    /// The same of those who wait in one of these sets; returns how many were woken.
    fn wake_of(self, sleepers: u32, sets: u32) -> u32 {
        let woken = keep_errno(|| {
            // SAFETY: FUTEX_WAKE_BITSET uses the address as a key and does not touch the memory.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0,
                    libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG,
                    sleepers.min(i32::MAX as u32),
                    ptr::null::<libc::timespec>(),
                    ptr::null::<u32>(),
                    sets,
                )
            }
        });
        // An error would mean that the memory is gone, and with it whoever could have slept there.
        woken.map_or(0, |woken| woken as u32)
    }
}
