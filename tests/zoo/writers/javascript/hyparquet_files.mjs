// Writes Parquet files with hyparquet-writer: `node hyparquet_files.mjs OUT`.
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { parquetWriteFile } from 'hyparquet-writer'
import { flat, nested } from './data.mjs'

const out = process.argv[2]
const types = {
  id: 'INT64', shuffled: 'INT32', runs: 'INT32', flag: 'BOOLEAN', float: 'FLOAT', double: 'DOUBLE', category: 'STRING',
  word: 'STRING', long: 'STRING', binary: 'BYTE_ARRAY', at: 'TIMESTAMP', empty: 'INT32',
}
const column = (name, more) => ({ name, type: types[name], data: flat.map(row => row[name]), nullable: true, ...more })
const every = (more = () => ({})) => Object.keys(types).map(name => column(name, more(name)))
const encodings = {
  delta: { shuffled: 'DELTA_BINARY_PACKED', id: 'DELTA_BINARY_PACKED', word: 'DELTA_LENGTH_BYTE_ARRAY', long: 'DELTA_BYTE_ARRAY', binary: 'DELTA_LENGTH_BYTE_ARRAY' },
  split: { float: 'BYTE_STREAM_SPLIT', double: 'BYTE_STREAM_SPLIT', shuffled: 'BYTE_STREAM_SPLIT' },
}
const compressors = { GZIP: input => new Uint8Array(gzipSync(input)) }
const small = { pageSize: 512, rowGroupSize: 400 }
const write = (name, columnData, more) => {
  const filename = join(out, `${name}.parquet`)
  try {
    parquetWriteFile({ filename, columnData, ...small, ...more })
  } catch (error) {
    rmSync(filename, { force: true })
    console.log(`skipped ${name}: ${String(error).split('\n')[0]}`)
  }
}

write('flat-snappy', every())
write('flat-none', every(), { codec: 'UNCOMPRESSED' })
write('flat-gzip', every(), { codec: 'GZIP', compressors })
write('flat-no_statistics', every(), { statistics: false })
write('flat-indexes', every(() => ({ columnIndex: true })), { statisticsTruncateLength: 8 })
write('flat-bloom', every(name => ({ columnIndex: true, bloomFilter: !['flag', 'empty'].includes(name) })))
write('flat-one_page', every(() => ({ offsetIndex: false })), { pageSize: 2 ** 20 })
write('flat-delta', every(name => (name in encodings.delta ? { encoding: encodings.delta[name] } : {})))
write('flat-split', every(name => (name in encodings.split ? { encoding: encodings.split[name] } : {})))
const lists = ['id', 'numbers', 'words', 'items'].map(name => ({ name, data: nested.map(row => row[name]) }))
const list = (name, element) => [
  { name, repetition_type: 'OPTIONAL', num_children: 1, converted_type: 'LIST' },
  { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
  ...element,
]
const schema = [
  { name: 'root', num_children: 4 },
  { name: 'id', type: 'INT64', repetition_type: 'REQUIRED' },
  ...list('numbers', [{ name: 'element', type: 'INT32', repetition_type: 'OPTIONAL' }]),
  ...list('words', [{ name: 'element', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' }]),
  ...list('items', [
    { name: 'element', repetition_type: 'OPTIONAL', num_children: 2 },
    { name: 'name', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' },
    { name: 'size', type: 'INT32', repetition_type: 'OPTIONAL' },
  ]),
]
write('nested-snappy', lists, { schema })
write('nested-none', lists, { schema, codec: 'UNCOMPRESSED', pageSize: 2 ** 20 })
const found = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules/hyparquet-writer/package.json')))
console.log(`writer hyparquet-writer ${found.version}`)
