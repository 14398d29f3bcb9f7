//! A host that is asked about its objects and about nothing else: memory that is none yet would make it stop.

mod mini;

use larder_lab::Lowest;
use larder_moving::{Config, Heap, Host, Keep, Mutator, Visitor};
use larder_units::Bytes;
use mini::{buffers, small};

/// Objects without references, whose first word is their size and never 0.
struct Strict;

// SAFETY: that is what `make` writes.
unsafe impl Host for Strict {
    unsafe fn size(&self, _: *mut u8, word: usize) -> usize {
        assert_ne!(word, 0, "the size of what is no object");
        word
    }

    unsafe fn scan<V: Visitor>(&self, object: *mut u8, _: &mut V) {
        // SAFETY: readable, whatever it is.
        assert_ne!(unsafe { *object.cast::<usize>() }, 0, "the slots of what is no object");
    }
}

fn make(vm: &Mutator<'_, Strict>, bytes: usize, old: bool) -> usize {
    let object = if old { vm.allocate_old(bytes) } else { vm.allocate(bytes) }.unwrap();
    // SAFETY: a fresh object, of whole words.
    unsafe {
        for word in 0..bytes / 8 {
            assert_eq!(*object.cast::<usize>().add(word), 0, "word {word}");
        }
        object.cast::<usize>().write(bytes);
    }
    object.expose_provenance()
}

/// In every part of the heap, and where the memory is a hole beside a pinned object.
#[test]
fn the_host_is_not_asked_about_what_a_collection_provides() {
    let config = || Config { buffers: buffers(Lowest::Threads, 8), ..small() };
    for (bytes, old) in [(1024, false), (1024, true), (256 << 10, false), (256 << 10, true)] {
        let heap = Heap::create(Config { old: Bytes::mib(1), ..config() }, Strict).unwrap();
        let vm = heap.attach().unwrap();
        vm.handle(make(&vm, 64, false), Keep::Pinned);
        // Each collection is one that an allocation needs, and provides it.
        while heap.stats().young_collections < 4 {
            make(&vm, bytes, old);
        }
    }
}
