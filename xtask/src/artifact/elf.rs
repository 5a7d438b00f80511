//! Whether a program needs a dynamic linker.

/// ELF's program header type for the path of a dynamic linker (elf(5), `PT_INTERP`).
const PT_INTERP: u32 = 3;

/// True when the file is a 64-bit little-endian ELF program without an interpreter; `None` when it is no such file.
pub(crate) fn is_static(file: &[u8]) -> Option<bool> {
    // EI_CLASS 2 = 64 bit, EI_DATA 1 = little-endian.
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(field(file, 0x20)?)).ok()?;
    let entry = usize::from(u16::from_le_bytes(field(file, 0x36)?));
    let count = usize::from(u16::from_le_bytes(field(file, 0x38)?));
    let mut result = true;
    for index in 0..count {
        let offset = table.checked_add(entry.checked_mul(index)?)?;
        if u32::from_le_bytes(field(file, offset)?) == PT_INTERP {
            result = false;
        }
    }
    Some(result)
}

fn field<const N: usize>(file: &[u8], offset: usize) -> Option<[u8; N]> {
    file.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(types: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 0x40];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = 0x40;
        file[0x36] = 56;
        file[0x38] = u8::try_from(types.len()).unwrap();
        for kind in types {
            file.extend(kind.to_le_bytes());
            file.extend([0; 52]);
        }
        file
    }

    #[test]
    fn an_interpreter_anywhere_counts() {
        assert_eq!(is_static(&program(&[])), Some(true));
        assert_eq!(is_static(&program(&[1, 2, 6])), Some(true));
        assert_eq!(is_static(&program(&[6, 1, PT_INTERP])), Some(false));
    }

    #[test]
    fn what_is_no_program_or_cut_off_is_refused() {
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(is_static(b""), None);
        let whole = program(&[1, 1]);
        for length in 0..whole.len() - 52 {
            assert_eq!(is_static(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn this_test_is_linked_dynamically() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(false));
    }
}
