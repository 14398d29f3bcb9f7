//! Pins that hold most of the young generation, and then all go, when there is no room elsewhere.

mod mini;

use larder_moving::{Collection, Config, Handle, Keep, Local};
use larder_units::Bytes;
use mini::*;

/// Allocates objects with numbers, roots and a kilobyte each until there is no room for another; pins some in each block.
fn fill(vm: &Vm<'_>, all: &mut Vec<Local>, pins: &mut Vec<Handle>) {
    while let Ok(object) = make(vm, Kind::Strong, 0, 1000) {
        set_number(object, all.len() as u64);
        if all.len().is_multiple_of(8) {
            pins.push(vm.handle(object, Keep::Pinned));
        }
        all.push(vm.local(object));
    }
}

/// The same in the old generation, and then among large objects, without pins.
fn fill_old(vm: &Vm<'_>, all: &mut Vec<Local>) {
    for bytes in [1000, 20_000] {
        let make = if bytes == 1000 { make_old } else { make };
        while let Ok(object) = make(vm, Kind::Strong, 0, bytes) {
            set_number(object, all.len() as u64);
            all.push(vm.local(object));
        }
    }
}

/// Memory that is exhausted is a value, whichever generation was full first.
#[test]
fn what_was_pinned_can_be_copied_when_all_pins_go() {
    for (old, collectors) in [(256 << 10, 1), (256 << 10, 4), (2 << 20, 1), (2 << 20, 4)] {
        for old_first in [true, false] {
            let heap = heap(Config { old: Bytes(old), least_old: Bytes(old), collectors, ..small() });
            let vm = heap.attach().unwrap();
            let (mut all, mut pins) = (vec![], vec![]);
            if old_first {
                fill_old(&vm, &mut all);
            }
            fill(&vm, &mut all, &mut pins);
            if !old_first {
                fill_old(&vm, &mut all);
            }
            assert!(pins.len() > 40, "{} pins in {old} bytes", pins.len());
            for pin in pins {
                vm.release(pin);
            }
            for kind in [Collection::Young, Collection::Young, Collection::Full] {
                vm.collect(kind);
                assert!(all.iter().enumerate().all(|(n, &local)| number(vm.get(local)) == n as u64));
            }
        }
    }
}
