//! Tests of one marker, on a heap of cells of one kind.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};

use larder_sys::memory;
use larder_units::{BLOCK, Bytes};

use super::*;
use crate::hot::collect_best;
use crate::objects::{Grey, Marked, Visit};
use crate::volley::{Line, NOWHERE, Record, Records};
use crate::window::Range;

/// Cells of five words each, in blocks of their own, all of them objects.
#[derive(Clone, Copy)]
struct Cells {
    first: usize,
    blocks: usize,
    records: &'static [Line],
    marks: &'static [AtomicU8],
}

const CELL: usize = 48;
const SCANNED: usize = 40;
const IN_BLOCK: usize = BLOCK.0 / CELL;

impl Cells {
    fn new(objects: usize) -> Self {
        let blocks = objects.div_ceil(IN_BLOCK);
        let memory = memory::map_lazy(Bytes((blocks + 1) * BLOCK.0)).unwrap().as_ptr();
        let first = memory.expose_provenance().next_multiple_of(BLOCK.0);
        let marks: &[AtomicU8] = Box::leak((0..blocks * IN_BLOCK).map(|_| AtomicU8::new(0)).collect());
        let record = |block: usize| {
            let marks = (&raw const marks[block * IN_BLOCK]).expose_provenance();
            Line::of_cells(Record::CELLS_STATE, CELL, IN_BLOCK, SCANNED, marks)
        };
        Self { first, blocks, records: Box::leak((0..blocks).map(record).collect()), marks }
    }

    fn address(self, object: usize) -> usize {
        self.first + object / IN_BLOCK * BLOCK.0 + object % IN_BLOCK * CELL
    }

    fn write(self, object: usize, word: usize, value: usize) {
        // SAFETY: a word of an object; nobody marks yet.
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(self.address(object)).add(word).write(value) };
    }
}

impl Objects for Cells {
    type Place = Option<usize>;

    fn range(self) -> Range {
        Range { base: self.first, span: self.blocks * BLOCK.0 }
    }

    fn find(self, word: usize, _: Interior) -> Option<Self::Place> {
        self.range().contains(word).then(|| self.look_up(word, true)).filter(Option::is_some)
    }

    fn counts_everywhere(self, _: Interior) -> bool {
        true
    }

    fn near_displacements(self) -> u64 {
        1
    }

    fn look_up(self, word: usize, _: bool) -> Option<usize> {
        let (block, cell) = ((word - self.first) / BLOCK.0, (word - self.first) % BLOCK.0 / CELL);
        (cell < IN_BLOCK).then_some(block * IN_BLOCK + cell)
    }

    fn nowhere(self) -> Option<usize> {
        None
    }

    fn prefetch(self, _: Option<usize>, _: usize) {}

    fn prefetch_first(self, _: Option<usize>) {}

    fn prefetch_others(self, _: Option<usize>) {}

    fn prefetch_mark(self, _: Option<usize>) {}

    fn mark(self, place: Option<usize>) -> Option<Marked> {
        let object = place?;
        let entry = Entry::at(self.address(object), SCANNED);
        self.mark_byte(&self.marks[object]).then_some(Marked { bytes: CELL, entry })
    }

    fn is_leaf(self, _: Option<usize>) -> bool {
        false
    }

    fn mark_leaf(self, _: Option<usize>) -> Option<usize> {
        None
    }

    fn cells_around(self, _: usize) -> Option<crate::cells::Cells> {
        None
    }

    fn records(self) -> Records {
        Records { base: self.first, table: self.records.as_ptr().expose_provenance() }
    }

    fn located(self, place: Option<usize>) -> (usize, Marked) {
        let mark = place.map_or(&NOWHERE, |object| &self.marks[object]);
        let entry = Entry::at(place.map_or(0, |object| self.address(object)), SCANNED);
        (core::ptr::from_ref(mark).expose_provenance(), Marked { bytes: CELL, entry })
    }

    fn prefetch_rest(self, _: usize, _: usize, _: usize) {}

    fn mark_grey(self, place: Option<usize>) -> Option<Grey> {
        self.mark(place).map(|Marked { bytes, entry }| Grey { bytes, entry, block: 0, waits: false })
    }

    fn wait(self, _: &[usize]) {}

    fn has_grey(self) -> bool {
        false
    }

    fn take_grey(self, _: &mut usize, _: &mut dyn FnMut(Entry)) -> Option<Visit> {
        None
    }

    fn procs_returned(self) {}

    fn is_marked(self, mark: &AtomicU8) -> bool {
        mark.load(Ordering::Relaxed) != 0
    }

    fn mark_byte(self, mark: &AtomicU8) -> bool {
        // No epoch of these is the byte of no object.
        !core::ptr::eq(mark, &raw const NOWHERE) && mark.swap(1, Ordering::Relaxed) == 0
    }
}

/// Two lists, whose nodes refer to the same object besides, wait as two words: as few are not many, but one is half of the work.
#[test]
fn one_of_two_lists_is_given_away_while_others_have_nothing() {
    const NODES: usize = 20_000;
    for hungry in [0, 1] {
        let cells = Cells::new(2 * NODES + 1);
        let mut roots = [0; 2];
        for node in 1..=2 * NODES {
            let list = node % 2;
            cells.write(node, 1, cells.address(0));
            cells.write(node, 2, roots[list]);
            roots[list] = cells.address(node);
        }
        let mut words = vec![0; WORDS];
        let mut own =
            Own { stack: Stack::new(), words: words.as_mut_ptr(), proc_room: core::ptr::null_mut(), proc_entries: 0 };
        own.stack.reserve(1 << 16).unwrap();
        let (part, hungry) = (Public::new(), AtomicU32::new(hungry));
        part.set_up(&own.stack).unwrap();
        let mut marker = Marker::new(cells, &mut own);
        marker.set_public(Some(Shared { part: &part, form: public::Form::Deque, hungry: &hungry }));
        let low = roots.as_ptr().expose_provenance();
        marker.push_range(low, low + size_of_val(&roots), Interior::AsConfigured);
        let mut announced = Vec::new();
        marker.drain(|n| announced.push(n));
        let alone = marker.tally.objects;
        if hungry.load(Ordering::Relaxed) == 0 {
            assert_eq!((announced, alone), (Vec::new(), 2 * NODES + 1));
            continue;
        }
        // What is given away without need is so at most a few times.
        assert!((1..8).contains(&announced.len()), "{announced:?}");
        assert!((NODES / 2..3 * NODES / 2).contains(&alone), "{alone}");
        // SAFETY: the part is this marker's.
        while unsafe { marker.take_back(&part, public::Form::Deque) } {
            marker.drain(|_| {});
        }
        assert_eq!(marker.tally.objects, 2 * NODES + 1);
        assert!(cells.marks[..=2 * NODES].iter().all(|mark| mark.load(Ordering::Relaxed) == 1));
    }
}

/// Lists in all kinds of company, in every form that the processor has: what the roots reach is marked once each, and nothing else.
#[test]
fn all_of_a_list_is_marked_whatever_its_elements_refer_to_besides() {
    const NODES: usize = 6000;
    // Of element `i`: what its words are, by the numbers of other elements. The last is the root.
    type Element = fn(usize) -> [Option<usize>; SCANNED / size_of::<usize>()];
    let lists: [Element; 7] = [
        // The next alone.
        |i| [None, i.checked_sub(2), None, None, None],
        // Two neighbours; the element before comes first, or last.
        |i| [Some(i + 1).filter(|&next| next < NODES), None, i.checked_sub(1), None, None],
        |i| [None, i.checked_sub(1), None, None, Some(i + 1).filter(|&next| next < NODES)],
        // The first of all, as a type, the next, and one that nothing else leads to.
        |i| [Some(0), i.checked_sub(4), (i >= 3).then(|| i - 3), None, None],
        // Shapes that take turns.
        |i| {
            let (next, other) = (i.checked_sub(1), i.checked_sub(2));
            if i % 3 == 0 { [None, None, None, next, None] } else { [next, Some(i), None, other, None] }
        },
        // All words are addresses, most of them known.
        |i| [i.checked_sub(7), i.checked_sub(1), Some(i), Some(0), i.checked_sub(3)],
        // A tree.
        |i| {
            let child = |k: usize| (NODES - 1).checked_sub(2 * (NODES - 1 - i) + k);
            [child(1), None, child(2), None, Some(i)]
        },
    ];
    for (number, element) in lists.into_iter().enumerate() {
        let cells = Cells::new(NODES);
        let mut is_reached = vec![false; NODES];
        let mut left = vec![NODES - 1];
        while let Some(i) = left.pop() {
            if !core::mem::replace(&mut is_reached[i], true) {
                left.extend(element(i).into_iter().flatten());
            }
        }
        for i in 0..NODES {
            for (place, other) in element(i).into_iter().enumerate() {
                cells.write(i, place, other.map_or(i, |other| cells.address(other)));
            }
        }
        let expected = is_reached.iter().filter(|reached| **reached).count();
        assert!(expected > NODES / 4, "list {number} is short: {expected}");
        for queued in [false, true] {
            for form in [Form::Portable, Form::Avx2, Form::Avx2Volleys, Form::Avx512, Form::Avx512Volleys] {
                if form > window::detect() {
                    continue;
                }
                cells.marks.iter().for_each(|mark| mark.store(0, Ordering::Relaxed));
                let root = [cells.address(NODES - 1)];
                let mut words = vec![0; WORDS];
                let mut own = Own {
                    stack: Stack::new(),
                    words: words.as_mut_ptr(),
                    proc_room: core::ptr::null_mut(),
                    proc_entries: 0,
                };
                own.stack.reserve(1 << 16).unwrap();
                let mut marker = Marker::new(cells, &mut own);
                let low = root.as_ptr().expose_provenance();
                marker.push_range(low, low + size_of_val(&root), Interior::AsConfigured);
                let mut never = || false;
                if queued {
                    marker.drain_as::<true>(form, &mut |_| {}, &mut never);
                } else {
                    marker.drain_as::<false>(form, &mut |_| {}, &mut never);
                }
                let marked = cells.marks[..NODES].iter().map(|mark| mark.load(Ordering::Relaxed) == 1);
                assert!(marked.eq(is_reached.iter().copied()), "list {number}, {form:?}, {queued}");
                assert_eq!(marker.tally.objects, expected, "list {number}, {form:?}, {queued}");
            }
        }
    }
}

#[test]
fn what_is_collected_is_in_the_range_while_it_changes() {
    const N: usize = 3 * window::WIDTH;
    let range = Range { base: 0x7000_0000_0000, span: 0x1000 };
    let memory = [const { AtomicUsize::new(0) }; N];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                memory.iter().enumerate().for_each(|(i, word)| word.store(range.base + i, Ordering::Relaxed));
                memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
        });
        let mut out = [0; N];
        let mut seen = 0;
        while seen < 2_000_000 {
            // SAFETY: the words are read as a marker beside the program reads them; there is room for all.
            let found = unsafe { collect_best(memory.as_ptr().cast(), N, range, out.as_mut_ptr()) };
            seen += 1 + found;
            if let Some(word) = out[..found].iter().find(|word| !range.contains(**word)) {
                over.store(true, Ordering::Relaxed);
                panic!("{word:#x} is outside");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
