//! Arguments of threads (`pthread_create`): where the C library keeps them.
//!
//! What a thread is made with is a word of its descriptor, in no memory that a collector searches, until the thread begins. An object to
//! which nothing else refers has to live meanwhile, so the words are read there. The C library describes its descriptors
//! and the lists that they are in to debuggers ([`crate::control_block`]); glibc before 2.34 does not describe the lists to their own process, and
//! there nothing is found.

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::control_block::{described, symbol};
use crate::thread::pid;

/// A link of the C library's lists: the next one's address, and that of the one before.
const LINK: usize = 2 * size_of::<usize>();
/// Descriptors are smaller than this, in bytes. A description that says more is of something else.
const LARGEST: usize = 1 << 13;
/// Most bytes between the two words of interest, with both.
const MOST_BETWEEN: usize = 1 << 11;
/// How often a list is read again that others have changed meanwhile.
const MOST_ATTEMPTS: usize = 64;
/// Most links of a list.
const MOST_LINKS: usize = 1 << 22;

/// The lists of threads, on stacks of the C library's and of the program's own: addresses of their heads, which are links; 0 where that is not known.
///
/// Sync: [`find`] writes, more than one thread the same; a reader that sees 0 finds nothing.
static HEADS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Where the argument lies from its descriptor's link. Sync: as `HEADS`.
static ARGUMENT_FROM_LINK: AtomicUsize = AtomicUsize::new(0);
/// The address of the C library's number of threads. Sync: as `HEADS`.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The C library was asked, or is being asked. Sync: a flag of its own; whoever comes meanwhile does without.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks the C library where all that lies, the first time. Looks symbols up, so the caller can wait for the loader's lock.
pub fn find() {
    // Read first, since threads that come and go come here.
    if !ASKED.load(Ordering::Relaxed) {
        ASKED.store(true, Ordering::Relaxed);
        ask();
    }
}

#[cold]
fn ask() {
    let (count, global) = (symbol(c"__nptl_nthreads"), symbol(c"_rtld_global"));
    if count.is_null() || global.is_null() {
        return;
    }
    let Some(used) = described(c"_thread_db_rtld_global__dl_stack_used") else { return };
    let Some(user) = described(c"_thread_db_rtld_global__dl_stack_user") else { return };
    let Some(link) = described(c"_thread_db_pthread_list") else { return };
    let Some(start) = described(c"_thread_db_pthread_start_routine") else { return };
    let lists = [used, user, link].iter().all(|field| field.bytes == LINK);
    // The argument is the field behind the routine that is called with it.
    if !lists || start.bytes != size_of::<usize>() || start.offset > LARGEST || link.offset > LARGEST {
        return;
    }
    let argument = start.offset + start.bytes;
    // One read has both, the link first, as in all versions so far.
    let Some(between) = argument.checked_sub(link.offset).filter(|it| (LINK..MOST_BETWEEN).contains(it)) else {
        return;
    };
    ARGUMENT_FROM_LINK.store(between, Ordering::Relaxed);
    for (head, field) in HEADS.iter().zip([used, user]) {
        head.store(global.addr() + field.offset, Ordering::Relaxed);
    }
    // ORDER arguments.count: Release; who sees it sees the rest.
    COUNT.store(count.expose_provenance(), Ordering::Release);
}

/// How many threads the C library has made and not seen the end of, with the main thread. `None` before [`find`], or where it does not say.
pub fn threads() -> Option<usize> {
    // ORDER arguments.count: Acquire, with the store in `find`.
    let at = COUNT.load(Ordering::Acquire);
    // SAFETY: 0, or the address of a variable of the C library's, an `unsigned int`, which it changes by atomic operations.
    (at != 0).then(|| unsafe { &*with_exposed_provenance::<AtomicU32>(at) }.load(Ordering::Relaxed) as usize)
}

/// Calls `f` with the argument that each thread of the C library's was made with, whether it has begun or not; with some more than once, where others change the
/// lists meanwhile, and with a word of the main thread's that is none. A system call for each, and no lock: threads may be stopped.
pub fn for_each(mut f: impl FnMut(usize)) {
    // ORDER arguments.count: Acquire, with the store in `find`.
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let own = pid();
    for head in &HEADS {
        let head = head.load(Ordering::Relaxed);
        for _ in 0..MOST_ATTEMPTS {
            if walk(own, head, &mut f) {
                break;
            }
        }
    }
}

/// Goes through a list. False where it has changed on the way.
fn walk(own: i32, head: usize, f: &mut impl FnMut(usize)) -> bool {
    let between = ARGUMENT_FROM_LINK.load(Ordering::Relaxed);
    let mut words = [0; MOST_BETWEEN / size_of::<usize>() + 1];
    let Some(&[mut at, _]) = read(own, head, &mut words[..2]) else { return true };
    let (mut earlier, mut before) = (0, head);
    for _ in 0..MOST_LINKS {
        if at == head {
            return true;
        }
        let Some(&[next, previous, .., argument]) = read(own, at, &mut words[..between / size_of::<usize>() + 1])
        else {
            // Its thread has ended, and its stack is gone.
            return false;
        };
        // A link that was taken out is in another list by now, or will be. But a thread that was stopped in the middle of a change stays there, and has
        // changed the way back alone: to the link that it takes out, `before`, or to one that it puts in.
        if previous != before && previous != earlier && !is_put_in(own, previous, before, at) {
            return false;
        }
        f(argument);
        (earlier, before, at) = (before, at, next);
    }
    true
}

/// Whether a link is about to come between two others. Its thread has no argument yet.
fn is_put_in(own: i32, link: usize, before: usize, after: usize) -> bool {
    read(own, link, &mut [0; 2]) == Some(&[after, before])
}

/// Reads words of this process that may not be there. `None` where not all are, or where the kernel does not let it.
fn read(own: i32, at: usize, into: &mut [usize]) -> Option<&[usize]> {
    let bytes = size_of_val(into);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(at), iov_len: bytes };
    // SAFETY: the kernel writes to the words given, and reports a source that is not mapped.
    let n = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    (n == bytes as isize).then_some(into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    fn times(secret: usize) -> usize {
        let mut found = 0;
        for_each(|argument| found += usize::from(argument == secret));
        found
    }

    /// Whether no thread was made with it. A thread that others are making may have the descriptor of one that has ended, and its argument for a moment.
    fn is_gone(secret: usize) -> bool {
        (0..10_000).any(|_| {
            std::thread::yield_now();
            times(secret) == 0
        })
    }

    extern "C" fn waits(lock: *mut c_void) -> *mut c_void {
        // The argument is the number whose bits are the lock's address turned over.
        let lock = lock.map_addr(|it| !it);
        // SAFETY: the test's lock, which it holds until it has looked, and keeps until this thread has ended.
        unsafe {
            libc::pthread_mutex_lock(lock.cast());
            libc::pthread_mutex_unlock(lock.cast());
        }
        core::ptr::null_mut()
    }

    /// Makes a thread, on the stack given or one of the C library's, whose argument is found while it runs, and not after.
    fn is_found_while_it_runs(stack: Option<&mut [u64]>) {
        // SAFETY: attributes, lock and thread are made and ended here, in order.
        unsafe {
            let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
            assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
            if let Some(stack) = stack {
                let r = libc::pthread_attr_setstack(&mut attributes, stack.as_mut_ptr().cast(), size_of_val(stack));
                assert_eq!(r, 0, "no such stack");
            }
            let mut lock = libc::PTHREAD_MUTEX_INITIALIZER;
            let secret = (&raw mut lock).map_addr(|it| !it);
            assert!(is_gone(secret.addr()));
            libc::pthread_mutex_lock(&mut lock);
            let mut thread = core::mem::zeroed();
            assert_eq!(libc::pthread_create(&mut thread, &attributes, waits, secret.cast()), 0, "no thread");
            assert!(threads().is_some_and(|n| n >= 2));
            assert_ne!(times(secret.addr()), 0);
            libc::pthread_mutex_unlock(&mut lock);
            assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
            assert!(is_gone(secret.addr()));
            libc::pthread_attr_destroy(&mut attributes);
        }
    }

    #[test]
    fn a_threads_argument_is_found_while_it_runs() {
        // Another test may be at it, and `find` waits for nobody.
        ask();
        assert_ne!(COUNT.load(Ordering::Relaxed), 0, "this C library describes its threads otherwise");
        // Nobody's stack is the same one twice, so that every list is in order again after each.
        for _ in 0..100 {
            is_found_while_it_runs(None);
        }
        is_found_while_it_runs(Some(&mut vec![0; 1 << 16]));
    }

    #[test]
    fn all_are_found_while_others_come_and_go() {
        ask();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::spawn(|| ()).join().expect("a thread that does nothing");
                    }
                });
            }
            for _ in 0..300 {
                is_found_while_it_runs(None);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// A head and three descriptors behind it, the last of which is in no list yet: words from the link on, with the number as the argument.
    struct List {
        nodes: Vec<Vec<usize>>,
    }

    impl List {
        fn of_two() -> Self {
            ask();
            let between = ARGUMENT_FROM_LINK.load(Ordering::Relaxed) / size_of::<usize>();
            let mut list = Self { nodes: (0..4).map(|i| [vec![0; between], vec![i]].concat()).collect() };
            (0..3).for_each(|i| list.link(i, (i + 1) % 3, (i + 2) % 3));
            list
        }

        fn at(&self, i: usize) -> usize {
            self.nodes[i].as_ptr().expose_provenance()
        }

        fn link(&mut self, i: usize, next: usize, previous: usize) {
            let words = [self.at(next), self.at(previous)];
            self.nodes[i][..2].copy_from_slice(&words);
        }

        /// What a walk finds, and whether it came to the end.
        fn walk(&self) -> (Vec<usize>, bool) {
            let mut found = Vec::new();
            let whole = walk(pid(), self.at(0), &mut |argument| found.push(argument));
            (found, whole)
        }
    }

    #[test]
    fn a_list_in_the_middle_of_a_change_is_found() {
        let mut list = List::of_two();
        assert_eq!(list.walk(), (vec![1, 2], true));
        // One comes behind the head: its own link is made, then the way back to it, then the way to it.
        list.link(3, 1, 0);
        assert_eq!(list.walk(), (vec![1, 2], true));
        list.link(1, 2, 3);
        assert_eq!(list.walk(), (vec![1, 2], true));
        list.link(0, 3, 2);
        assert_eq!(list.walk(), (vec![3, 1, 2], true));
        // One goes: the way back past it is made, then the way.
        list.link(2, 0, 3);
        assert_eq!(list.walk(), (vec![3, 1, 2], true));
        list.link(3, 2, 0);
        assert_eq!(list.walk(), (vec![3, 2], true));
    }

    #[test]
    fn a_link_that_has_come_into_another_list_is_not_followed() {
        let mut list = List::of_two();
        // The way to it was read before it was taken out: it is the first and only one behind another head.
        list.link(1, 3, 3);
        list.link(3, 1, 1);
        assert_eq!(list.walk(), (vec![], false));
    }

    #[test]
    fn what_is_not_mapped_is_not_read() {
        let mut words = [0; 4];
        assert!(read(pid(), 8, &mut words).is_none());
        assert_eq!(read(pid(), [1usize, 2, 3, 4].as_ptr().addr(), &mut words), Some(&[1, 2, 3, 4][..]));
    }
}
