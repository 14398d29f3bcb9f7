//! Enough of x86-64 to follow what a compiler made: how long an instruction is, where control goes from it, and what it does with the
//! stack pointer.
//!
//! It is no disassembler. What compilers rarely emit is unknown to it, as are vector registers, and what could reach a stack in a way that is not followed
//! here; who asks assumes the worse then.

/// The longest instruction there is, in bytes.
pub(super) const LONGEST: usize = 15;

/// Where control goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    /// To the next instruction, or to one that lies so far behind the next.
    Branch(i32),
    /// So far behind the next.
    Jump(i32),
    /// Into a function, which returns to the next.
    Call,
    /// Back to a caller, or nowhere.
    Away,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// In bytes.
    pub(super) length: usize,
    pub(super) flow: Flow,
    /// What it adds to the stack pointer.
    pub(super) moves: i32,
    /// The place that it reads, writes, or takes the address of, in bytes from the stack pointer before it.
    pub(super) touches: Option<i32>,
}

/// What the two fields of a ModRM byte name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fields {
    /// General registers, or memory.
    General,
    /// One of them is part of the opcode.
    Group,
    /// Nothing that is touched.
    Ignored,
}

/// The rest of the instruction's bytes.
struct Rest<'a> {
    code: &'a [u8],
    at: usize,
}

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.code.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at += bytes;
        (self.at <= self.code.len()).then_some(())
    }

    fn displacement8(&mut self) -> Option<i32> {
        self.byte().map(|byte| i32::from(byte as i8))
    }

    fn displacement32(&mut self) -> Option<i32> {
        let bytes = self.code.get(self.at..self.at + 4)?.try_into().ok()?;
        self.at += 4;
        Some(i32::from_le_bytes(bytes))
    }
}

/// The number of the stack pointer among the registers, and what a ModRM byte has in its place.
const RSP: u8 = 4;
/// The base that a ModRM byte without displacement does not have: an address relative to the instruction is meant, or none.
const NO_BASE: u8 = 5;
const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_X: u8 = 2;
const REX_B: u8 = 1;

/// An operand that a ModRM byte names.
struct Operand {
    /// The register field: a register's low bits, or part of the opcode.
    field: u8,
    /// Memory at this distance from the stack pointer.
    touches: Option<i32>,
    /// The stack pointer itself is the register operand of the other field.
    is_stack_pointer: bool,
}

/// Reads a ModRM byte and what belongs to it; `None` where it names a register or a place that may be on the stack in another way.
fn operand(rest: &mut Rest, rex: u8, fields: Fields, segment: bool) -> Option<Operand> {
    let byte = rest.byte()?;
    let (kind, field, low) = (byte >> 6, byte >> 3 & 7, byte & 7);
    if fields == Fields::General && field == RSP && rex & REX_R == 0 {
        return None;
    }
    if kind == 3 {
        let is_stack_pointer = low == RSP && rex & REX_B == 0 && fields != Fields::Ignored;
        return Some(Operand { field, touches: None, is_stack_pointer });
    }
    let (mut base, mut indexed) = (low, false);
    if low == RSP {
        let scaled = rest.byte()?;
        base = scaled & 7;
        indexed = scaled >> 3 & 7 != RSP || rex & REX_X != 0;
    }
    let baseless = kind == 0 && base == NO_BASE;
    let displacement = match kind {
        0 if baseless => rest.displacement32()?,
        0 => 0,
        1 => rest.displacement8()?,
        _ => rest.displacement32()?,
    };
    let on_stack = base == RSP && rex & REX_B == 0;
    let touches = match fields {
        Fields::Ignored => None,
        // Thread-local storage, or static data.
        _ if segment || baseless && !indexed => None,
        _ if on_stack && !indexed => Some(displacement),
        // A frame pointer, perhaps, or the end of an array.
        _ if on_stack || displacement < 0 => return None,
        _ => None,
    };
    Some(Operand { field, touches, is_stack_pointer: false })
}

/// The instruction that `code` begins with; `None` for one that is not known, or not followed.
pub(super) fn decode(code: &[u8]) -> Option<Instruction> {
    let mut rest = Rest { code: &code[..code.len().min(LONGEST)], at: 0 };
    let (mut short, mut segment, mut rex) = (false, false, 0);
    let mut opcode = rest.byte()?;
    loop {
        match opcode {
            0x66 => short = true,
            0x64 | 0x65 => segment = true,
            0x2e | 0xf0 | 0xf2 | 0xf3 => {}
            _ => break,
        }
        opcode = rest.byte()?;
    }
    if opcode & 0xf0 == 0x40 {
        rex = opcode;
        opcode = rest.byte()?;
    }
    let immediate = if short && rex & REX_W == 0 { 2 } else { 4 };
    let is_rsp = opcode & 7 == RSP && rex & REX_B == 0;
    let (mut flow, mut moves, mut touches) = (Flow::Next, 0, None);

    let is_long = opcode == 0x0f;
    if is_long {
        opcode = rest.byte()?;
    }
    let (fields, behind) = match (is_long, opcode) {
        (false, 0x50..=0x57) if !is_rsp => {
            moves = -8;
            (None, 0)
        }
        (false, 0x58..=0x5f) if !is_rsp => {
            (moves, touches) = (8, Some(0));
            (None, 0)
        }
        (false, 0x68 | 0x6a) => {
            moves = -8;
            (None, if opcode == 0x68 { immediate } else { 1 })
        }
        (false, 0xc3) => {
            flow = Flow::Away;
            (None, 0)
        }
        // hlt and ud2.
        (false, 0xf4) | (true, 0x0b) => {
            flow = Flow::Away;
            (None, 0)
        }
        (false, 0xe8) => {
            flow = Flow::Call;
            (None, 4)
        }
        (false, 0xe9) => {
            flow = Flow::Jump(rest.displacement32()?);
            (None, 0)
        }
        (false, 0xeb) => {
            flow = Flow::Jump(rest.displacement8()?);
            (None, 0)
        }
        (false, 0x70..=0x7f) => {
            flow = Flow::Branch(rest.displacement8()?);
            (None, 0)
        }
        (true, 0x80..=0x8f) => {
            flow = Flow::Branch(rest.displacement32()?);
            (None, 0)
        }
        // Nothing, sign extensions, syscall, byte swaps.
        (false, 0x90 | 0x98 | 0x99) | (true, 0x05) => (None, 0),
        (true, 0xc8..=0xcf) if opcode & 7 != RSP || rex & REX_B != 0 => (None, 0),
        (false, 0xb0..=0xb7) => (None, 1),
        (false, 0xb8..=0xbf) if !is_rsp => (None, if rex & REX_W != 0 { 8 } else { immediate }),
        // With the accumulator.
        (false, 0x04 | 0x0c | 0x14 | 0x1c | 0x24 | 0x2c | 0x34 | 0x3c | 0xa8) => (None, 1),
        (false, 0x05 | 0x0d | 0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0xa9) => (None, immediate),

        (false, 0x00..=0x3b) if opcode & 7 < 4 => (Some(Fields::General), 0),
        (false, 0x63 | 0x84..=0x8b | 0x8d) => (Some(Fields::General), 0),
        (false, 0x69) => (Some(Fields::General), immediate),
        (false, 0x6b) => (Some(Fields::General), 1),
        (false, 0xd0..=0xd3 | 0xfe | 0xff | 0xf6 | 0xf7) => (Some(Fields::Group), 0),
        (false, 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6) => (Some(Fields::Group), 1),
        (false, 0x81 | 0xc7) => (Some(Fields::Group), immediate),

        // The long forms of nop, among them those that mark where calls may go.
        (true, 0x1e | 0x1f) => (Some(Fields::Ignored), 0),
        (true, 0x40..=0x4f | 0xa3 | 0xab | 0xaf | 0xb0 | 0xb1 | 0xb3 | 0xb6..=0xb8 | 0xbb..=0xbf | 0xc0 | 0xc1) => {
            (Some(Fields::General), 0)
        }
        (true, 0xa4 | 0xac) => (Some(Fields::General), 1),
        (true, 0x90..=0x9f) => (Some(Fields::Group), 0),
        (true, 0xba) => (Some(Fields::Group), 1),
        _ => return None,
    };
    if let Some(fields) = fields {
        // `lea` and `add` and `sub` may move the stack pointer, by what they name.
        let moving_lea = !is_long && opcode == 0x8d && rex & REX_R == 0 && rest.code.get(rest.at)? >> 3 & 7 == RSP;
        let operand = operand(&mut rest, rex, if moving_lea { Fields::Group } else { fields }, segment)?;
        touches = operand.touches;
        if moving_lea {
            moves = operand.touches?;
            touches = None;
        }
        if operand.is_stack_pointer {
            let amount = match (is_long, opcode) {
                (false, 0x83) => i32::from(*rest.code.get(rest.at)? as i8),
                (false, 0x81) => Rest { code: rest.code, at: rest.at }.displacement32()?,
                _ => return None,
            };
            moves = match operand.field {
                0 if rex & REX_W != 0 => amount,
                5 if rex & REX_W != 0 => amount.checked_neg()?,
                _ => return None,
            };
        }
        match (is_long, opcode, operand.field) {
            (false, 0xf6, 0 | 1) => rest.skip(1)?,
            (false, 0xf7, 0 | 1) => rest.skip(immediate)?,
            (false, 0xfe | 0xff, 0 | 1) => {}
            (false, 0xff, 2) => flow = Flow::Call,
            (false, 0xff, 6) => moves = -8,
            // Jumps to where a register says, far calls, transactions, and what does not exist.
            (false, 0xfe | 0xff, _) | (false, 0xc6 | 0xc7, 1..) => return None,
            _ => {}
        }
    }
    rest.skip(behind)?;
    Some(Instruction { length: rest.at, flow, moves, touches })
}
