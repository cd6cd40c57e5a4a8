//! Text in columns.

use std::fmt;

/// Rows of cells, aligned to the left.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with the given head.
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(str::to_owned).to_vec());
    }
}

/// Each row on a line, indented by two spaces, without trailing space.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}"));
            writeln!(f, "{}", cells.collect::<String>().trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["a", "b"]);
        table.row(["long", ""]);
        table.row(["x", "y"]);
        assert_eq!(table.to_string(), "  a     b\n  long\n  x     y\n");
    }
}
