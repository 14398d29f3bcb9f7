//! The mini VM: the smallest host that uses everything the heap offers.
//!
//! An object is a header word, references, and bytes:
//!
//! | bits of the header | meaning |
//! |---|---|
//! | 0 | 0: the heap's |
//! | 1..8 | kind |
//! | 8..32 | number of references |
//! | 32..64 | size in bytes, as it was asked for |
#![allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]

use larder_lab::Lowest;
use larder_moving::{Collection, Config, Heap, Host, Mutator, OutOfMemory, Owned, RootVisitor, Visitor, Way};
use larder_policy::labs::Sizes;
use larder_units::Bytes;
use std::sync::{Condvar, Mutex};

/// How an object's references are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Strong = 0,
    /// All references are weak.
    Weak = 1,
    /// References come in pairs of a key and a value.
    Ephemerons = 2,
}

/// The host.
#[derive(Default)]
pub struct Mini {
    /// Roots of the host's own.
    pub globals: Mutex<Vec<usize>>,
    /// What was collected.
    pub collections: Mutex<Vec<Collection>>,
    /// Where the allocation buffers went.
    pub flips: Mutex<Vec<Way>>,
    /// Told when `collections` grows.
    pub collected: Condvar,
}

pub fn header(kind: Kind, references: usize, bytes: usize) -> usize {
    (kind as usize) << 1 | references << 8 | bytes << 32
}

fn references(word: usize) -> usize {
    word >> 8 & 0xff_ffff
}

// SAFETY: sizes and slots follow from the header alone, which `make` writes before the object is seen.
unsafe impl Host for Mini {
    unsafe fn size(&self, _: *mut u8, word: usize) -> usize {
        word >> 32
    }

    unsafe fn scan<V: Visitor>(&self, object: *mut u8, visitor: &mut V) {
        // SAFETY: an object begins with its header, and its references follow.
        unsafe { self.scan_part(object, 0, usize::MAX, visitor) };
    }

    unsafe fn scan_part<V: Visitor>(&self, object: *mut u8, from: usize, to: usize, visitor: &mut V) {
        let first = object.cast::<usize>();
        // SAFETY: as above.
        let word = unsafe { *first };
        let count = references(word);
        let at = |i: usize| first.wrapping_add(1 + i);
        let low = (from.saturating_sub(at(0).addr()) / 8).min(count);
        let high = (to.saturating_sub(at(0).addr()).div_ceil(8)).min(count);
        match word >> 1 & 0x7f {
            0 => (low..high).for_each(|i| visitor.slot(at(i))),
            1 => (low..high).for_each(|i| visitor.weak(at(i))),
            _ => (0..count / 2).for_each(|i| visitor.ephemeron(at(2 * i), at(2 * i + 1))),
        }
    }

    fn roots<V: RootVisitor>(&self, visitor: &mut V) {
        for global in self.globals.lock().unwrap().iter_mut() {
            visitor.slot(global);
        }
    }

    fn flipped(&self, way: Way) {
        self.flips.lock().unwrap().push(way);
    }

    fn after_collection(&self, kind: Collection) {
        self.collections.lock().unwrap().push(kind);
        self.collected.notify_all();
    }
}

pub type Vm<'h> = Mutator<'h, Mini>;

pub fn heap(config: Config) -> Owned<Mini> {
    Heap::create(config, Mini::default()).unwrap()
}

/// Buffers of `kib` KiB.
pub fn buffers(lowest: Lowest, kib: usize) -> larder_lab::Config {
    larder_lab::Config::new(lowest, Sizes::fixed(Bytes(kib << 10)))
}

/// A small heap that is looked at after each collection.
pub fn small() -> Config {
    Config {
        young: Bytes(512 << 10),
        most_young: Bytes(512 << 10),
        old: Bytes::mib(16),
        collectors: 2,
        buffers: buffers(Lowest::Threads, 8),
        verify: true,
        poison: true,
        ..Config::default()
    }
}

fn fill(object: *mut u8, kind: Kind, references: usize, bytes: usize) -> usize {
    // SAFETY: a fresh object of at least a word.
    unsafe { object.cast::<usize>().write(header(kind, references, bytes)) };
    object.expose_provenance()
}

/// A new object with `references` references and `payload` bytes behind them.
pub fn make(vm: &Vm<'_>, kind: Kind, references: usize, payload: usize) -> Result<usize, OutOfMemory> {
    let bytes = 8 + 8 * references + payload;
    Ok(fill(vm.allocate(bytes)?, kind, references, bytes))
}

/// As `make`, old from the beginning.
pub fn make_old(vm: &Vm<'_>, kind: Kind, references: usize, payload: usize) -> Result<usize, OutOfMemory> {
    let bytes = 8 + 8 * references + payload;
    Ok(fill(vm.allocate_old(bytes)?, kind, references, bytes))
}

fn slot(object: usize, i: usize) -> *mut usize {
    std::ptr::with_exposed_provenance_mut::<usize>(object).wrapping_add(1 + i)
}

pub fn get(object: usize, i: usize) -> usize {
    assert!(i < count(object));
    // SAFETY: an object of the VM, which no other thread changes.
    unsafe { *slot(object, i) }
}

pub fn set(vm: &Vm<'_>, object: usize, i: usize, value: usize) {
    assert!(i < count(object));
    // SAFETY: as above.
    unsafe { vm.store(slot(object, i), value) };
}

pub fn count(object: usize) -> usize {
    references(word(object))
}

pub fn word(object: usize) -> usize {
    // SAFETY: as above.
    unsafe { *std::ptr::with_exposed_provenance::<usize>(object) }
}

/// The bytes behind the references.
pub fn payload<'a>(object: usize) -> &'a mut [u8] {
    let at = 8 + 8 * count(object);
    // SAFETY: as above; the caller is done with it before the next safepoint.
    unsafe {
        std::slice::from_raw_parts_mut(
            std::ptr::with_exposed_provenance_mut::<u8>(object).add(at),
            (word(object) >> 32) - at,
        )
    }
}

/// A number in the first bytes of the payload.
pub fn number(object: usize) -> u64 {
    u64::from_le_bytes(payload(object)[..8].try_into().unwrap())
}

pub fn set_number(object: usize, n: u64) {
    payload(object)[..8].copy_from_slice(&n.to_le_bytes());
}

/// The CPUs that the calling thread may use.
pub fn cpus() -> Vec<usize> {
    // SAFETY: a set on the stack.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Moves the calling thread to a CPU, where it stays.
pub fn move_to(cpu: usize) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}
