//! A free list for each concurrency id, and what becomes of it when another thread takes it over:
//! `cargo run -p larder-percpu --example free_list`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_percpu::{By, structures::FreeList, structures::Link};

/// A buffer that is used by one thread at a time.
#[repr(C)]
struct Buffer {
    link: Link,
    used: AtomicUsize,
}

static FREE: FreeList = FreeList::new(By::ConcurrencyId);

fn main() {
    const BUFFERS: usize = 64;
    let buffers: &'static [Buffer] =
        (0..BUFFERS).map(|_| Buffer { link: Link::new(), used: AtomicUsize::new(0) }).collect::<Vec<_>>().leak();
    for buffer in buffers {
        // SAFETY: the buffers live for ever, begin with their link, and are in no list.
        unsafe { FREE.push(NonNull::from(buffer).cast()) };
    }
    let without = AtomicUsize::new(0);
    const THREADS: usize = 8;
    const ROUNDS: usize = 100_000;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let Some(link) = FREE.pop() else {
                        // The buffers are with other indices at the moment.
                        without.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    // SAFETY: a popped node is this thread's alone.
                    let buffer = unsafe { link.cast::<Buffer>().as_ref() };
                    buffer.used.store(buffer.used.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    // SAFETY: as above.
                    unsafe { FREE.push(link) };
                }
            });
        }
    });
    let mut used = 0;
    let found = FREE.take_all(|link| {
        // SAFETY: a node that was taken over is this thread's alone.
        used += unsafe { link.cast::<Buffer>().as_ref() }.used.load(Ordering::Relaxed);
    });
    println!(
        "{found:?} of {BUFFERS} buffers, used {used} times; {} rounds found none",
        without.load(Ordering::Relaxed)
    );
    assert_eq!((found, used + without.load(Ordering::Relaxed)), (Ok(BUFFERS), THREADS * ROUNDS));
}
