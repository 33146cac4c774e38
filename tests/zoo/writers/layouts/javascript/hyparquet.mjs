// Writes the rows with hyparquet-writer: `node hyparquet.mjs OUT`.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parquetWriteFile } from 'hyparquet-writer'
import { columns } from './rows.mjs'

const out = process.argv[2]
const types = { id: 'INT64', key: 'STRING', text: 'STRING', category: 'STRING', x: 'DOUBLE', zero: 'DOUBLE', n: 'INT64', at: 'TIMESTAMP' }
const columnData = Object.entries(columns()).map(([name, data]) => ({ name, data, type: types[name], nullable: name === 'n' }))
let filename = join(out, 'default.parquet')
parquetWriteFile({ filename, columnData })
filename = join(out, 'tuned.parquet')
parquetWriteFile({ filename, pageSize: 65536, columnData: columnData.map(column => ({ ...column, columnIndex: true, offsetIndex: true })) })
const found = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules/hyparquet-writer/package.json')))
console.log(`writer hyparquet-writer ${found.version}`)
