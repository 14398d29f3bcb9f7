//! Huge pages, where they are there for the asking.
//!
//! A huge page needs one translation where 512 pages need one each, and one page fault. But where a range asks for huge pages and none is free,
//! the kernel may move memory about in the page fault until one is (`/sys/kernel/mm/transparent_hugepage/defrag`): stalls of
//! more than a second were seen. So they are asked for while many are free.
//!
//! A guest whose host takes back what it leaves free pays for a page once more when it takes it again: 5 ms for a huge one where 0.1 are usual. Only
//! long free pieces go back (free page reporting), so small pages may be had quickly while huge ones are not. So pages are had when the memory before them
//! is used up, and where one takes long ([`QUICK`]) so much memory is had in small pages, to compare.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use larder_units::{Bytes, Nanos};

use crate::clock;
use crate::env::read_file;

/// A huge page.
pub const HUGE_PAGE: Bytes = Bytes::mib(2);

/// The kernel's free memory: a line for each zone of each node, with a column for each power of two of pages.
const FREE_MEMORY: &CStr = c"/proc/buddyinfo";

/// The column of [`FREE_MEMORY`] that counts pieces as long as a huge page.
const COLUMN: usize = (HUGE_PAGE.0 / larder_units::PAGE.0).trailing_zeros() as usize;

/// So many times as many as are asked for must be free: others take some meanwhile.
const PLENTY: usize = 4;

/// A huge page that takes longer is one that the host does not have yet. To clear one takes 0.1 ms, and 512 small pages 0.6.
pub const QUICK: Nanos = Nanos(1_000_000);

/// What is read of [`FREE_MEMORY`]: some 90 nodes. Not on the stack, which may be a handler's.
struct Text {
    bytes: UnsafeCell<[u8; 1 << 14]>,
    /// Sync: who sets it has the bytes until it clears it: `Acquire`, `Release`.
    taken: AtomicBool,
}

// SAFETY: the bytes are used by who has set `taken`.
unsafe impl Sync for Text {}

static TEXT: Text = Text { bytes: UnsafeCell::new([0; 1 << 14]), taken: AtomicBool::new(false) };

/// Asks for huge pages behind a range that was just made accessible, if many times as many are free; whether it did. Three system calls to see
/// that. Any thread, also in a signal handler.
///
/// # Safety
/// The page-aligned range lies in a mapping of the caller's.
unsafe fn ask(at: *mut u8, size: Bytes) -> bool {
    // SAFETY: the caller's promise.
    are_free(size) && unsafe { prefer(at, size) }
}

/// Asks for huge pages behind a range that is going to be written as a whole, as [`ask`] does, unless the first takes long to come.
///
/// # Safety
/// As for [`ask`].
pub unsafe fn ask_unless_slow(at: *mut u8, size: Bytes) {
    let first = at.addr().next_multiple_of(HUGE_PAGE.0);
    let has_one = first + HUGE_PAGE.0 <= at.addr() + size.0;
    // SAFETY: the caller's promise.
    unsafe {
        if ask(at, size) && has_one && time_to_have(at.with_addr(first)) > QUICK {
            refuse(at, size);
        }
    }
}

/// Asks for none any more.
///
/// # Safety
/// As for [`ask`].
pub unsafe fn refuse(at: *mut u8, size: Bytes) {
    // SAFETY: the caller owns the range, whose content does not change.
    unsafe { libc::madvise(at.cast(), size.0, libc::MADV_NOHUGEPAGE) };
}

/// Has memory come behind [`HUGE_PAGE`] bytes from an aligned address on, in a huge page if they ask for those; how long that took the thread. No
/// time where the kernel cannot do it (before Linux 5.14).
///
/// # Safety
/// As for [`ask`], for these bytes.
pub unsafe fn time_to_have(at: *mut u8) -> Nanos {
    let begun = clock::of_thread();
    // SAFETY: inside the caller's range, whose content does not change.
    unsafe { libc::madvise(at.cast(), HUGE_PAGE.0, libc::MADV_POPULATE_WRITE) };
    clock::of_thread().since(begun)
}

/// Asks for huge pages behind a range, however many are free; whether the kernel knows them. For a range that is touched by and by.
///
/// # Safety
/// The page-aligned range lies in a mapping of the caller's.
pub unsafe fn prefer(at: *mut u8, size: Bytes) -> bool {
    // SAFETY: the caller owns the range, whose content does not change.
    unsafe { libc::madvise(at.cast(), size.0, libc::MADV_HUGEPAGE) == 0 }
}

/// Whether huge pages for so much memory can be had without a wait, whichever node they come from. False when another thread is asking.
pub fn are_free(size: Bytes) -> bool {
    if TEXT.taken.swap(true, Ordering::Acquire) {
        return false;
    }
    // SAFETY: `taken` was clear.
    let text = unsafe { &mut *TEXT.bytes.get() };
    let free = read_file(FREE_MEMORY, text).map_or(0, least_free);
    TEXT.taken.store(false, Ordering::Release);
    free / PLENTY >= size.0.div_ceil(HUGE_PAGE.0)
}

/// The huge pages that are free on the node with the fewest, by the text of [`FREE_MEMORY`].
fn least_free(text: &[u8]) -> usize {
    let (mut least, mut node, mut sum) = (usize::MAX, None, 0);
    for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        // "Node 0, zone Normal 2630 694 ..."
        let (Some(of), Some(_zone)) = (words.nth(1), words.nth(1)) else { continue };
        if node.replace(of).is_some_and(|before| before != of) {
            least = least.min(sum);
            sum = 0;
        }
        let counts =
            words.map(|word| str::from_utf8(word).ok().and_then(|word| word.parse::<usize>().ok()).unwrap_or(0));
        sum += counts.enumerate().skip(COLUMN).map(|(column, count)| count << (column - COLUMN)).sum::<usize>();
    }
    if node.is_some() { least.min(sum) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_huge_pages_are_counted_on_the_node_with_the_fewest() {
        let one = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
                   Node 0, zone    DMA32    840    798    786    562    410    199     91     36     15     15    707 \n\
                   Node 0, zone   Normal   2630    694   3829   2785   1497    704    319    203   1388    552   2663 \n";
        assert_eq!(least_free(one.as_bytes()), 1 + 6 + 15 + 2 * 707 + 552 + 2 * 2663);
        let three = "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 7 4\nNode 1, zone DMA32 0 0 0 0 0 0 0 0 0 1 0\nNode 1, zone Normal 0 0 0 0 0 0 0 0 0 0 2\n\
                     Node 2, zone Normal 0 0 0 0 0 0 0 0 0 6 0\n";
        assert_eq!(least_free(three.as_bytes()), 5);
    }

    #[test]
    fn what_cannot_be_read_is_no_huge_page() {
        for text in [
            "",
            "Node 0, zone",
            "Node 0, zone Normal 1 2 3\n",
            "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 9 9",
            "\n\n",
            "0 0 0 0 0 0 0 0 0 0 0 0 0 x\n",
        ] {
            assert_eq!(least_free(text.as_bytes()), 0, "{text:?}");
        }
    }

    #[test]
    fn more_than_there_is_is_not_free() {
        assert!(!are_free(Bytes(usize::MAX)));
    }
}
