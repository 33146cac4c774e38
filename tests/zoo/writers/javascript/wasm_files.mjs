// Writes every Arrow table of a folder as Parquet files with parquet-wasm: `node wasm_files.mjs TABLES OUT`.
import { readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const require = createRequire(import.meta.url)
const { Compression, Encoding, EnabledStatistics, Table, WriterPropertiesBuilder, WriterVersion, writeParquet } = require('parquet-wasm')
const { tableFromIPC, tableToIPC } = require('apache-arrow')
const [, , tables, out] = process.argv
const deltas = builder =>
  ['id', 'shuffled', 'runs'].reduce((b, name) => b.setColumnEncoding(name, Encoding.DELTA_BINARY_PACKED), builder.setDictionaryEnabled(false))

const variants = {
  'v1-none': builder => builder.setWriterVersion(WriterVersion.V1).setCompression(Compression.UNCOMPRESSED).setDictionaryEnabled(false),
  'v1-snappy': builder => builder.setWriterVersion(WriterVersion.V1).setCompression(Compression.SNAPPY),
  'v2-zstd': builder => builder.setWriterVersion(WriterVersion.V2).setCompression(Compression.ZSTD),
  'v2-lz4_raw': builder => builder.setWriterVersion(WriterVersion.V2).setCompression(Compression.LZ4_RAW).setStatisticsEnabled(EnabledStatistics.Page),
  'v2-gzip-delta': builder => deltas(builder).setWriterVersion(WriterVersion.V2).setCompression(Compression.GZIP),
  'v2-brotli': builder => builder.setWriterVersion(WriterVersion.V2).setCompression(Compression.BROTLI).setStatisticsEnabled(EnabledStatistics.None),
}
for (const table of ['flat', 'nested']) {
  const stream = tableToIPC(tableFromIPC(readFileSync(join(tables, `${table}.arrow`))), 'stream')
  for (const [name, change] of Object.entries(variants)) {
    const builder = new WriterPropertiesBuilder().setMaxRowGroupSize(400).setDataPageSizeLimit(512).setWriteBatchSize(64)
    writeFileSync(join(out, `${table}-${name}.parquet`), writeParquet(Table.fromIPCStream(stream), change(builder).build()))
  }
}
const found = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules/parquet-wasm/package.json')))
console.log(`writer parquet-wasm ${found.version}`)
