//! Memory nodes: spreading the pages of a mapping, and asking where a page lies.

use core::ffi::{c_int, c_ulong, c_void};
use core::ptr;

use larder_units::Bytes;

/// Bits in a mask of nodes.
const MOST_NODES: usize = 1024;
const WORD: usize = c_ulong::BITS as usize;

/// A set of nodes, as the kernel takes it.
type Mask = [c_ulong; MOST_NODES / WORD];

/// The nodes on which this process may have memory; `None` where the kernel knows no nodes, or a sandbox forbids the question.
fn allowed() -> Option<Mask> {
    const MPOL_F_MEMS_ALLOWED: c_ulong = 1 << 2;
    let mut mask: Mask = [0; MOST_NODES / WORD];
    // SAFETY: the mask has as many bits as is said.
    let r = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            ptr::null_mut::<c_int>(),
            mask.as_mut_ptr(),
            MOST_NODES,
            ptr::null_mut::<c_void>(),
            MPOL_F_MEMS_ALLOWED,
        )
    };
    (r == 0).then_some(mask)
}

/// How many nodes this process may have memory on; 1 where nothing is known.
pub fn nodes() -> usize {
    allowed().map_or(1, |mask| mask.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1))
}

/// Has the pages of a mapping that are touched from now on taken from all nodes in turn. False where the kernel does not.
///
/// # Safety
/// The page-aligned range is the caller's.
pub unsafe fn interleave(at: *mut u8, size: Bytes) -> bool {
    const MPOL_INTERLEAVE: c_int = 3;
    let Some(mask) = allowed() else { return false };
    // SAFETY: the range is the caller's; a policy changes no content. The kernel counts one bit less than it is told.
    unsafe { libc::syscall(libc::SYS_mbind, at, size.0, MPOL_INTERLEAVE, mask.as_ptr(), MOST_NODES + 1, 0) == 0 }
}

/// The node on which the page of an address lies; the page is touched by the question. `None` where the kernel does not say.
pub fn node_of(address: usize) -> Option<usize> {
    const MPOL_F_NODE: c_ulong = 1;
    const MPOL_F_ADDR: c_ulong = 2;
    let mut node: c_int = -1;
    // SAFETY: the kernel writes the number of a node.
    let r = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            ptr::null_mut::<c_ulong>(),
            0,
            ptr::without_provenance_mut::<c_void>(address),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    (r == 0).then(|| usize::try_from(node).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    #[test]
    fn the_kernel_reports_what_was_asked_for() {
        let size = Bytes::mib(1);
        let at = memory::map_lazy(size).unwrap().as_ptr();
        // SAFETY: the mapping is this test's own.
        let spread = unsafe { interleave(at, size) };
        assert_eq!(spread, allowed().is_some(), "a kernel with nodes interleaves");
        if spread {
            let maps = std::fs::read_to_string("/proc/self/numa_maps").expect("a kernel with nodes reports them");
            let line = maps.lines().find(|line| line.starts_with(&format!("{:x} ", at.addr()))).expect("a mapping");
            assert!(line.contains(" interleave:"), "{line}");
            // SAFETY: the mapping is this test's own.
            unsafe { at.write(1) };
            assert!(node_of(at.addr()).is_some());
        }
        assert!(nodes() >= 1);
        // SAFETY: as above.
        unsafe { memory::unmap(at, size) };
    }
}
