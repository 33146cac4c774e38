//! Writes the rows with the crate parquet: `writer VERSION TABLES OUT`.
use std::{env, fs::File, path::Path};

use arrow_ipc::reader::FileReader;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

fn write(tables: &str, out: &str, name: &str, properties: WriterProperties) {
    let reader = FileReader::try_new(File::open(Path::new(tables).join("rows.arrow")).unwrap(), None).unwrap();
    let file = File::create(Path::new(out).join(format!("{name}.parquet"))).unwrap();
    let mut writer = ArrowWriter::try_new(file, reader.schema(), Some(properties)).unwrap();
    for batch in reader {
        writer.write(&batch.unwrap()).unwrap();
    }
    writer.close().unwrap();
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let (version, tables, out) = (&arguments[1], &arguments[2], &arguments[3]);
    write(tables, out, "default", WriterProperties::builder().build());
    let tuned = WriterProperties::builder().set_data_page_row_count_limit(8192).set_dictionary_page_size_limit(65536);
    write(tables, out, "tuned", tuned.build());
    println!("writer parquet-rs {version}");
}
