//! Every chore of the repository.
mod generate;

fn main() -> anyhow::Result<()> {
    generate::proto(std::path::Path::new("."))
}
